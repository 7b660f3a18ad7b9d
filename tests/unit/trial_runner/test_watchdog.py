"""The hang watchdog of one member, where its own work fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gangline.domain.failure import HangRule
from services.common.state_folder import SharedFolder
from services.trial_runner.gang.gang_links import GangLinks
from services.trial_runner.gang.gang_plan import Place
from services.trial_runner.watchdog import watchdog as lookout_module
from services.trial_runner.watchdog.beats import Beats, RemoteBeats
from services.trial_runner.watchdog.watchdog import Watchdog
from tests.support.wait import until


def _no_links() -> GangLinks:
    """Returns the links of a gang of one member."""
    return GangLinks("token", 0, ("a1",), on_failure=lambda _: None, on_beats=lambda *_: None, on_hang=lambda _: None)


async def test_a_watchdog_that_breaks_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout_module, "MIN_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(lookout_module, "LOOK_SECONDS", 0.01)
    place = Place("a1", node_rank=0, agent_ids=("a1",), first_rank=0, local_world_size=1, world_size=1)
    remote, gang = RemoteBeats(place), _no_links()
    beats = Beats(SharedFolder(tmp_path), place)
    watchdog = Watchdog(place, HangRule(), beats, remote, gang, on_hang=lambda _: None)

    def living() -> Iterable[int]:
        raise OSError(5, "Input/output error")

    with capture_logs() as logs:
        watchdog.start(living, lambda pid: pid)
        await until(lambda: bool(logs), "a line in the log")
        await asyncio.wait_for(watchdog.close(), 5)
    assert [line["event"] for line in logs] == ["the hang watchdog broke: a hang of this trial ends nothing"]
    assert "Input/output error" in logs[0]["error"]
