"""Parts of an allocation's story that would take a real agent long, with its waits made short."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.domain.state import ExitKind
from gangline.v1 import agent_pb2, types_pb2
from services.agent.allocations import exit_judgement, lifecycle, roster
from services.agent.allocations.journal import Journal, open_journal
from services.agent.allocations.journal_record import JournalStop, mark_stopping
from services.agent.allocations.launcher import Launcher, RunnerProgram
from services.agent.allocations.roster import Roster
from tests.support.agent_process import is_running, make_spec, wait_until
from tests.support.stand_in_agent import PROGRAM


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with open_journal(tmp_path, 0) as journal:
        yield journal


class Recorded:
    """A roster whose statuses are kept."""

    def __init__(self, journal: Journal, program: RunnerProgram = PROGRAM) -> None:
        self.statuses: list[agent_pb2.AllocationStatus] = []
        self.roster = Roster("a1", journal, Launcher(program, None, ""), self.statuses.append)

    async def accept(self, allocation_id: str, plan: dict[str, object]) -> None:
        self.roster.accept(make_spec(allocation_id, ["a1/0"], plan), ("a1/0",), "")

    async def final(self, allocation_id: str) -> types_pb2.ExitReport:
        def find() -> agent_pb2.AllocationStatus | None:
            matches = [each for each in self.statuses if each.allocation_id == allocation_id]
            return next((each for each in matches if each.state == types_pb2.STATE_TERMINAL), None)

        return (await wait_until(find)).exit


@pytest.fixture
async def recorded(journal: Journal) -> AsyncIterator[Recorded]:
    recorded = Recorded(journal)
    yield recorded
    await recorded.roster.stop_all(0.0, "the test is over")


async def test_runner_that_has_reported_and_does_not_end(
    recorded: Recorded, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(exit_judgement, "LINGER_SECONDS", 0.2)
    await recorded.accept("1.1.1", {"linger": True})
    folder = journal.folder("1.1.1").path
    pid = int(await wait_until(lambda: (folder / "starts").exists() and (folder / "starts").read_text()))
    (folder / "finish").touch()
    report = await recorded.final("1.1.1")
    assert report.kind == types_pb2.EXIT_KIND_COMPLETED, "its own report counts"
    assert not is_running(pid)


async def test_slots_that_never_become_free(
    recorded: Recorded, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "SLOT_SECONDS", 0.3)
    await recorded.accept("1.1.1", {"deaf": True})
    await wait_until((journal.folder("1.1.1").path / "starts").exists)
    recorded.roster.stop("1.1.1", 10, JournalStop(ExitKind.KILLED, "the test says so", time.time() + 600))
    await recorded.accept("2.1.1", {})
    report = await recorded.final("2.1.1")
    assert report.kind == types_pb2.EXIT_KIND_START_FAILED
    assert report.message == "its slots are still in use by trial 1.1 (attempt 1) after 0.3 s"


@pytest.mark.parametrize("stuck", [[], ["1.1.1"]], ids=["all can be removed", "the disk refuses the oldest"])
async def test_ended_folders_are_removed_step_by_step_until_none_is_left(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: list[str]
) -> None:
    remove = shutil.rmtree

    def try_to_remove(path: Path, **options: Any) -> None:
        if Path(path).name not in stuck:
            remove(path, **options)

    monkeypatch.setattr(roster, "TIDY_SECONDS", 0.05)
    monkeypatch.setattr(roster, "FOLDERS_AT_A_TIME", 1)
    monkeypatch.setattr(roster, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(shutil, "rmtree", try_to_remove)
    ids = ["1.1.1", "2.1.1", "3.1.1"]
    for allocation_id in ids:
        await recorded.accept(allocation_id, {})
        recorded.roster.stop(allocation_id, 10, JournalStop(ExitKind.KILLED, "the test says so", time.time() + 60))
        await recorded.final(allocation_id)
    for allocation_id in ids:
        recorded.roster.forget(allocation_id)
    ended = tmp_path / "ended"
    await wait_until(lambda: ended.is_dir() and [path.name for path in ended.iterdir()] == stuck)


async def test_stop_before_the_start(recorded: Recorded, journal: Journal) -> None:
    await recorded.accept("1.1.1", {})
    recorded.roster.stop("1.1.1", 10, JournalStop(ExitKind.KILLED, "alice changed her mind", time.time() + 60))
    report = await recorded.final("1.1.1")
    assert report.kind == types_pb2.EXIT_KIND_KILLED
    assert report.message == "stopped before its trial runner started: alice changed her mind"
    assert not (journal.folder("1.1.1").path / "starts").exists()


async def test_stop_before_the_start_makes_room_for_the_next(recorded: Recorded) -> None:
    await recorded.accept("1.1.1", {})
    recorded.roster.stop("1.1.1", 10, JournalStop(ExitKind.KILLED, "alice changed her mind", time.time() + 60))
    await recorded.accept("2.1.1", {})
    assert (await recorded.final("1.1.1")).kind == types_pb2.EXIT_KIND_KILLED
    await wait_until(lambda: any(status.state == types_pb2.STATE_RUNNING for status in recorded.statuses))
    assert [record.allocation_id for record in recorded.roster.records if record.is_live] == ["2.1.1"]


async def test_stop_that_an_earlier_agent_had_written_and_not_carried_out(journal: Journal) -> None:
    """It needs no slots to end, so it does not wait for them."""
    order = JournalStop(ExitKind.KILLED, "alice changed her mind", time.time() + 60)
    earlier = Recorded(journal)
    await earlier.accept("1.1.1", {"deaf": True})
    await wait_until((journal.folder("1.1.1").path / "starts").exists)
    earlier.roster.stop("1.1.1", 10, order)
    await earlier.accept("2.1.1", {})
    (waiting,) = [record for record in earlier.roster.records if record.allocation_id == "2.1.1"]
    await earlier.roster.close()
    journal.folder("2.1.1").save(mark_stopping(waiting, order))

    recorded = Recorded(journal)
    recorded.roster.recover()
    assert (await recorded.final("2.1.1")).kind == types_pb2.EXIT_KIND_KILLED
    assert [record.allocation_id for record in recorded.roster.records if record.is_live] == ["1.1.1"]
    await recorded.roster.stop_all(0.0, "the test is over")


async def test_stop_of_what_was_never_here(recorded: Recorded) -> None:
    recorded.roster.stop("1.1.1", 10, JournalStop(ExitKind.PREEMPTED, "the test says so", time.time()))
    report = await recorded.final("1.1.1")
    assert report.kind == types_pb2.EXIT_KIND_PREEMPTED
    assert recorded.roster.records == []


async def test_runner_program_that_cannot_be_started(journal: Journal) -> None:
    recorded = Recorded(journal, RunnerProgram(command=("/does/not/exist",)))
    await recorded.accept("1.1.1", {})
    report = await recorded.final("1.1.1")
    assert report.kind == types_pb2.EXIT_KIND_START_FAILED
    assert "cannot start a trial runner" in report.message
    assert "No such file" in report.message


async def test_journal_that_cannot_be_written(
    recorded: Recorded, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing may run that the next agent would not find."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("services.common.state_folder.write_atomic", fail)
    await recorded.accept("1.1.1", {})
    report = await recorded.final("1.1.1")
    assert report.kind == types_pb2.EXIT_KIND_AGENT_DISK
    assert report.is_agent_at_fault
    assert "No space left on device" in report.message
    assert not (journal.folder("1.1.1").path / "starts").exists()
    recorded.roster.forget("1.1.1")
    assert recorded.roster.records == []
    await asyncio.sleep(0)
