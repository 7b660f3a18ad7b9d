"""The hang watchdog of one member, where its own work fails."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gangline.domain.failure import HangRule
from gangline.launch.beat_file import BATCHES, PID, map_cells
from services.common.state_folder import SharedFolder
from services.trial_runner.gang.gang_links import GangLinks
from services.trial_runner.gang.gang_plan import Place
from services.trial_runner.watchdog import watchdog as lookout_module
from services.trial_runner.watchdog.watchdog import Watchdog
from tests.support.wait import until


async def test_a_watchdog_that_breaks_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout_module, "MIN_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(lookout_module, "LOOK_SECONDS", 0.01)
    place = Place("a1", node_rank=0, agent_ids=("a1",), first_rank=0, local_world_size=1, world_size=1)
    watchdog = Watchdog(SharedFolder(tmp_path), place, HangRule(), GangLinks("token", 0, ("a1",)), lambda _: None)

    def living() -> Iterable[int]:
        raise OSError(5, "Input/output error")

    with capture_logs() as logs:
        watchdog.start(living)
        await until(lambda: bool(logs), "a line in the log")
        await asyncio.wait_for(watchdog.close(), 5)
    assert [line["event"] for line in logs] == ["the hang watchdog broke: a hang of this trial ends nothing"]
    assert "Input/output error" in logs[0]["error"]


async def test_the_workers_of_a_script_count_while_they_live(tmp_path: Path) -> None:
    place = Place("a1", 0, ("a1",), first_rank=2, local_world_size=2, world_size=4, runs_once=True)
    watchdog = Watchdog(SharedFolder(tmp_path), place, HangRule(), GangLinks("token", 0, ("a1",)), lambda _: None)
    assert [*watchdog.living_files([2])] == [2], "the script itself, before its first worker"
    assert watchdog.living_files([]) == {}
    for rank, pid in ((2, 2**22 + 1), (3, os.getpid())):
        map_cells(watchdog.files[rank].path)[PID] = pid
    assert [*watchdog.living_files([2])] == [3], "the other one has ended"
    map_cells(watchdog.files[3].path)[BATCHES] = 8
    assert (watchdog.batches_of(3), watchdog.batches_of(9)) == (8, None)
