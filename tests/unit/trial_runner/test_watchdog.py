"""The hang watchdog of one member: when it reads the ranks' progress, and where its own work fails."""

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
from tests.support.virtual_time import VirtualTime
from tests.support.wait import until


def _no_links() -> GangLinks:
    """Returns the links of a gang of one member."""
    return GangLinks("token", 0, ("a1",), on_failure=lambda _: None, on_beats=lambda *_: None, on_hang=lambda _: None)


def _watchdog(folder: Path, rule: HangRule) -> Watchdog:
    place = Place("a1", node_rank=0, agent_ids=("a1",), first_rank=0, local_world_size=1, world_size=1)
    beats = Beats(SharedFolder(folder), place)
    return Watchdog(place, rule, beats, RemoteBeats(place), _no_links(), on_hang=lambda _: None)


async def test_a_watchdog_that_breaks_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout_module, "MIN_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(lookout_module, "LOOK_SECONDS", 0.01)
    watchdog = _watchdog(tmp_path, HangRule())

    def living() -> Iterable[int]:
        raise OSError(5, "Input/output error")

    with capture_logs() as logs:
        watchdog.start(living, lambda pid: pid)
        await until(lambda: bool(logs), "a line in the log")
        await asyncio.wait_for(watchdog.close(), 5)
    assert [line["event"] for line in logs] == ["the hang watchdog broke: a hang of this trial ends nothing"]
    assert "Input/output error" in logs[0]["error"]


@pytest.mark.parametrize(
    ("rule", "times"),
    [
        (HangRule(), [101.0, 102.0, 103.0]),
        (HangRule(seconds=2.0, start_seconds=4.0), [100.5, 101.0, 101.5, 102.0, 102.5, 103.0]),
    ],
    ids=["every second", "four times within the shortest limit"],
)
@pytest.mark.parametrize("began_at", [100.1, 100.4])
def test_it_reads_at_the_same_times_in_all_processes(
    tmp_path: Path, rule: HangRule, times: list[float], began_at: float
) -> None:
    clock, read_at = VirtualTime(began_at), list[float]()

    def living() -> Iterable[int]:
        read_at.append(clock.now)
        return ()

    async def watch() -> None:
        watchdog = _watchdog(tmp_path, rule)
        watchdog.start(living, lambda pid: pid)
        await asyncio.sleep(103.05 - began_at)
        await watchdog.close()

    clock.run(watch(), 10.0)
    assert read_at == pytest.approx(times)
