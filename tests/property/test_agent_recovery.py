"""I1 and its kin on one agent, whatever crashes when: real journal, real stories, real processes that hold the locks.

A hypothesis state machine accepts, ends, stops and forgets allocations while the agent crashes between any two writes
and files of its journal are overwritten with garbage.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest import mock

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gangline.domain.state import ExitKind
from gangline.v1 import agent_pb2, types_pb2
from services.agent.allocations.journal import open_journal
from services.agent.allocations.journal_record import JournalRecord, JournalStop, Phase, find_holders
from services.agent.allocations.launcher import Launcher, RunnerProgram
from services.agent.allocations.roster import Roster
from services.common import disk
from tests.support.agent_process import is_running, make_spec
from tests.support.examples import examples

SLOTS = ("a1/0", "a1/1", "a1/2")
# $0 is "--spec", $1 its path; the lock that it inherits is all that the agent knows a runner by. The runners of 3.1.1
# and 4.1.1 are deaf: they obey no order to stop, so others have to wait for their slots.
SCRIPT = 'case "$1" in */[34].1.1/*) trap "" TERM QUIT;; esac; echo $$ >> "${1%/*}/starts"; exec sleep 600'
DEAF = {"3.1.1", "4.1.1"}
PROGRAM = RunnerProgram(command=("/bin/sh", "-c", SCRIPT))
REPORT = '{"exit": {"kind": "EXIT_KIND_COMPLETED", "message": "done"}}'
numbers = st.integers(min_value=1, max_value=4)


class Crash(BaseException):
    """The agent is gone in this moment; no `except Exception` of its own may see it."""


class AgentUnderCrashes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.stack = ExitStack()
        self.roster: Roster | None = None
        self.writes_left: int | None = None
        self.is_after_write = False
        self.accepted: set[str] = set()
        self.unwanted: set[str] = set()
        self.finals: dict[str, tuple[int, str]] = {}
        self.damaged: set[str] = set()
        self.slot_ids_by_pid: dict[int, tuple[str, ...]] = {}

    # The agent's life.

    @initialize(number=numbers, slots=st.sets(st.sampled_from(SLOTS), min_size=1))
    def begin(self, number: int, slots: set[str]) -> None:
        self.recover()
        self.accept_one(number, slots)

    def recover(self) -> None:
        self.stack = ExitStack()
        journal = self.stack.enter_context(open_journal(self.folder, 2))
        self.stack.enter_context(mock.patch("services.common.state_folder.write_atomic", self.write))

        async def start() -> None:
            self.roster = Roster("a1", journal, Launcher(PROGRAM, None, ""), self.on_status)
            self.roster.recover()

        self.loop.run_until_complete(start())
        self.settle()
        if self.has_crashed():
            event("crashed in its recovery")
            self.crash()
            self.recover()

    def crash(self) -> None:
        assert self.roster is not None
        self.loop.run_until_complete(self.roster.close())
        self.stack.close()
        self.writes_left = None

    def write(self, path: Path, content: str, mode: int = 0o644, *, is_durable: bool = True) -> None:
        if self.writes_left is None:
            disk.write_atomic(path, content, mode, is_durable=is_durable)
            return
        self.writes_left -= 1
        if self.writes_left >= 0:
            disk.write_atomic(path, content, mode, is_durable=is_durable)
            return
        if self.is_after_write:
            disk.write_atomic(path, content, mode, is_durable=is_durable)
        self.writes_left = 0
        raise Crash

    def on_status(self, status: agent_pb2.AllocationStatus) -> None:
        if status.allocation_id not in self.unwanted:
            self.accepted.add(status.allocation_id)
        if status.state == types_pb2.STATE_TERMINAL and status.allocation_id not in self.damaged:
            final = (status.exit.kind, status.exit.message)
            assert self.finals.setdefault(status.allocation_id, final) == final, "I3: a terminal state never changes"

    def settle(self) -> None:
        """Until every story has come as far as it can without a command or an end of its runner."""
        deadline = time.monotonic() + 20
        while not self.is_settled():
            assert time.monotonic() < deadline, list(self.records())
            self.loop.run_until_complete(asyncio.sleep(0.005))

    def is_settled(self) -> bool:
        return self.has_crashed() or all(self.has_come_to_rest(record) for record in self.records())

    def has_come_to_rest(self, record: JournalRecord) -> bool:
        if record.phase is Phase.ACCEPTED and record.stop is None:
            return bool(find_holders(self.records(), record.allocation_id, record.slot_ids))
        is_running = bool(self.runners(record.allocation_id))
        is_staying = record.stop is None or record.allocation_id in DEAF
        return record.phase is Phase.ENDED or (record.phase is Phase.RUNNING and is_running and is_staying)

    def has_crashed(self) -> bool:
        assert self.roster is not None
        tasks = list(self.roster._tasks.values())
        return any(task.done() and isinstance(_failure(task), Crash) for task in tasks)

    def do(self, action: Callable[[Roster], object]) -> None:
        """Runs a command; when the agent crashes over it, the next one takes over."""
        assert self.roster is not None
        has_crashed = False

        async def run() -> None:
            assert self.roster is not None
            action(self.roster)

        try:
            self.loop.run_until_complete(run())
        except Crash:
            has_crashed = True
        if not has_crashed:
            self.settle()
        if has_crashed or self.has_crashed():
            self.crash()
            self.recover()
            event("crashed between two writes")

    def records(self) -> list[JournalRecord]:
        assert self.roster is not None
        return self.roster.records

    def runners(self, allocation_id: str) -> list[int]:
        """Its living runners."""
        return [pid for pid in self.starts(allocation_id) if is_running(pid)]

    def starts(self, allocation_id: str) -> list[int]:
        with suppress(FileNotFoundError):
            return [int(word) for word in (self.path(allocation_id) / "starts").read_text().split()]
        return []

    def path(self, allocation_id: str) -> Path:
        return self.folder / "allocations" / allocation_id

    # What happens to it.

    @rule(number=numbers, slots=st.sets(st.sampled_from(SLOTS), min_size=1))
    def accept(self, number: int, slots: set[str]) -> None:
        self.accept_one(number, slots)

    def accept_one(self, number: int, slots: set[str]) -> None:
        """The first free allocation id from this number on."""
        candidates = [f"{1 + (number + step) % 4}.1.1" for step in range(4)]
        allocation_id = next((each for each in candidates if not self.path(each).exists()), None)
        if allocation_id is None:
            return
        self.damaged.discard(allocation_id)
        self.unwanted.discard(allocation_id)
        self.finals.pop(allocation_id, None)
        slot_ids = tuple(sorted(slots))
        # With one slot it is a short command, of which the journal writes down less.
        plan = {"entrypoint": "true"} if len(slot_ids) == 1 else {}
        event("accepted")
        self.do(lambda roster: roster.accept(make_spec(allocation_id, slot_ids, plan), slot_ids, ""))

    @rule(number=numbers, has_report=st.booleans())
    def runner_ends(self, number: int, has_report: bool) -> None:
        self.end_runner(f"{number}.1.1", has_report)
        self.do(lambda _: None)

    def end_runner(self, allocation_id: str, has_report: bool) -> None:
        for pid in self.runners(allocation_id):
            if has_report:
                (self.path(allocation_id) / "exit.json").write_text(REPORT)
            os.kill(pid, signal.SIGKILL)

    @rule(number=numbers, kind=st.sampled_from([ExitKind.KILLED, ExitKind.PREEMPTED]))
    def stop(self, number: int, kind: ExitKind) -> None:
        order = JournalStop(kind, "the test says so", time.time() + 60)
        if any(record.allocation_id == f"{number}.1.1" for record in self.records()):
            self.do(lambda roster: roster.stop(f"{number}.1.1", 10, order))

    @rule(number=numbers)
    def forget(self, number: int) -> None:
        self.accepted.discard(f"{number}.1.1")
        self.unwanted.add(f"{number}.1.1")
        self.do(lambda roster: roster.forget(f"{number}.1.1"))

    @rule(
        number=numbers,
        dies=st.booleans(),
        broken=st.sets(st.sampled_from(["record.json", "spec.json", "exit.json"])),
        writes=st.none() | st.integers(min_value=0, max_value=2),
    )
    def crash_and_recover(self, number: int, dies: bool, broken: set[str], writes: int | None) -> None:
        """While the agent is away its runner may end and its files may be overwritten; the next may crash as well."""
        self.crash()
        self.writes_left = writes
        allocation_id = f"{number}.1.1"
        if dies:
            self.end_runner(allocation_id, has_report=True)
        for name in broken:
            if (self.path(allocation_id) / name).exists():
                (self.path(allocation_id) / name).write_bytes(b"\x00garbage")
                self.damaged.add(allocation_id)
        self.recover()

    @rule(writes=st.integers(min_value=0, max_value=3), is_after_write=st.booleans())
    def crash_soon(self, writes: int, is_after_write: bool) -> None:
        """Changes nothing while a crash is due already. That is no precondition, because how many writes an example has
        made by now differs from run to run, and a rule that comes and goes makes hypothesis give up."""
        if self.writes_left is None:
            self.writes_left, self.is_after_write = writes, is_after_write

    # What must hold.

    @invariant()
    def no_slot_has_two_runners(self) -> None:
        """I1, by the processes themselves and not by what the journal believes."""
        taken: list[str] = []
        for path in (self.folder / "allocations").glob("*/starts"):
            for pid in self.runners(path.parent.name):
                self.slot_ids_by_pid.setdefault(pid, self.slot_ids(path.parent.name))
                taken += self.slot_ids_by_pid[pid]
        assert len(taken) == len(set(taken)), f"a slot is used twice: {taken}"

    def slot_ids(self, allocation_id: str) -> tuple[str, ...]:
        return next((record.slot_ids for record in self.records() if record.allocation_id == allocation_id), ())

    @invariant()
    def one_runner_for_each_allocation(self) -> None:
        for path in (self.folder / "allocations").glob("*/starts"):
            assert len(self.starts(path.parent.name)) == 1

    @invariant()
    def what_was_accepted_is_there_until_it_is_forgotten(self) -> None:
        """I5 on this machine: a status that was sent out stands for something on disk."""
        if self.roster is not None:
            assert self.accepted <= {record.allocation_id for record in self.records()}

    @invariant()
    def no_runner_without_a_story(self) -> None:
        if self.roster is None:
            return
        live = {record.allocation_id for record in self.records() if record.is_live}
        running = {
            path.parent.name
            for path in (self.folder / "allocations").glob("*/starts")
            if self.runners(path.parent.name)
        }
        assert running <= live

    def teardown(self) -> None:
        if self.roster is not None:
            self.crash()
        for path in self.folder.glob("*/*/starts"):
            for word in path.read_text().split():
                with suppress(ProcessLookupError):
                    os.killpg(int(word), signal.SIGKILL)
        self.loop.close()
        shutil.rmtree(self.folder)


def _failure(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


AgentUnderCrashes.TestCase.settings = settings(
    max_examples=examples(50), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestAgentUnderCrashes = AgentUnderCrashes.TestCase
