"""The lifecycle of one allocation on this agent, from its acceptance to its final report.

`live` names the steps in order. Each step is a small method that documents the cases that it tolerates. The record
changes only here, and a change is on disk before it is reported. A lifecycle that starts from a record on disk
continues where the previous agent stopped. The roster owns it, gives it orders (`stop`) and passes its statuses on to
the scheduler.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog
from google.protobuf import json_format

from gangline.domain.state import ExitKind, State
from gangline.errors import GanglineError
from gangline.protocol import wire
from gangline.v1 import agent_pb2, types_pb2
from services.agent.allocations import process_watch
from services.agent.allocations.command_runner import CommandRunner, Turn
from services.agent.allocations.exit_judgement import Evidence, ProcessEnd, conclude, plan_kill_at, plan_signal
from services.agent.allocations.folder import AllocationFolder
from services.agent.allocations.journal_record import (
    JournalRecord,
    JournalStop,
    Phase,
    Process,
    mark_ended,
    mark_started,
    mark_stopping,
)
from services.agent.allocations.launcher import Launcher
from services.agent.allocations.leftover import remove_leftovers
from services.agent.allocations.runner_metrics import RunnerMetrics
from services.agent.machine import metrics
from services.common.disk_fault import is_disk_fault

# Longest pause between two looks at the runner's exit.json, for which there is no event.
POLL_SECONDS = 5.0
# Longest pause between two looks while the address of the runner's metrics is not known.
METRICS_SECONDS = 1.0
# Limit for the processes of an ended allocation to die. SIGKILL takes effect at once unless the kernel itself is stuck
# (a hung GPU, a dead network disk).
SWEEP_SECONDS = 5.0
# Time for which the nursery is spared. Without its runner it kills all that it holds, to the last grandchild; a killed
# nursery could not.
NURSERY_SECONDS = 1.0
# Pauses between two looks at dying processes, each twice as long as the one before. A nursery usually takes a few
# milliseconds more than its runner, and its slots are idle meanwhile.
SHORTEST_PAUSE_SECONDS = 0.002
LONGEST_PAUSE_SECONDS = 0.05
# Pause between two searches for a living runner whose pid is not in the record.
FIND_SECONDS = 0.2
# Pause before the steps are repeated after an unexpected error.
RETRY_SECONDS = 1.0
# Longest delay of an acceptance. A short command has ended by then, even one that waits for its turn to start.
HOLD_SECONDS = 3.0
# Cap of this delay, as a share of the time that the leader gives an agent to accept.
HOLD_SHARE = 0.25

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LifecycleContext:
    """The parts of the agent that a lifecycle needs."""

    agent_id: str
    launcher: Launcher
    # returns "" once no other live allocation holds the record's slots, or the reason why that will not happen
    wait_for_slots: Callable[[JournalRecord], Awaitable[str]]
    on_status: Callable[[agent_pb2.AllocationStatus], None]  # called with each status after it is on disk
    # returns once the leader is heard; None without a leader to wait for
    wait_until_heard: Callable[[], Awaitable[None]] | None = None
    # returns once the leader has answered a question that is asked now; None without a leader to ask
    ask_leader: Callable[[], Awaitable[None]] | None = None


def hold_seconds_of(allocation: types_pb2.Allocation) -> float:
    """Returns for how long the acceptance of a lone command is held back."""
    accept_seconds = allocation.deadline_at - allocation.created_at
    return min(HOLD_SECONDS, HOLD_SHARE * accept_seconds) if accept_seconds > 0 else HOLD_SECONDS


class AllocationLifecycle:
    """The lifecycle of one allocation.

    problem: which file of its folder was unreadable; empty if there is none.
    is_lone_command: its runner may be a process that has run other commands before, and that continues with the next
    one.
    runs_once: it is a user's command. The leader may have given it up, and then it runs elsewhere. So the leader is
    asked right before it starts.
    hold_seconds: delay of the report of its acceptance, which is left out if the allocation ends before.
    """

    def __init__(
        self,
        folder: AllocationFolder,
        record: JournalRecord,
        context: LifecycleContext,
        problem: str = "",
        *,
        is_lone_command: bool = False,
        runs_once: bool = False,
        hold_seconds: float = 0.0,
    ) -> None:
        self.folder = folder
        self.record = record
        self._context = context
        self._evidence = Evidence(problem=problem, log_path=str(folder.log_path))
        self._ordered = asyncio.Event()
        self._is_lone_command = is_lone_command
        self._wait_for_word = context.ask_leader if runs_once and context.ask_leader else context.wait_until_heard
        # Set while this agent may hand the process over to another allocation.
        self._command_runner: CommandRunner | None = None
        self._is_released = False
        self._turn: Turn | None = None
        # Never changed once it is set, because a stream may be sending it.
        self._final: agent_pb2.AllocationStatus | None = None
        self._hold_seconds = hold_seconds
        self._holding: asyncio.TimerHandle | None = None
        self._metrics = RunnerMetrics(folder)
        self._log = log.bind(allocation_id=record.allocation_id)

    def status(self) -> agent_pb2.AllocationStatus:
        """Returns the current status for the scheduler."""
        if self._final is not None:
            return self._final
        if self.record.status is not None:
            self._final = json_format.ParseDict(dict(self.record.status), agent_pb2.AllocationStatus())
            return self._final
        state = State.STARTING if self.record.phase is Phase.ACCEPTED else State.RUNNING
        return agent_pb2.AllocationStatus(
            allocation_id=self.record.allocation_id,
            state=wire.enum_number(state),  # type: ignore[arg-type] # the map knows numbers, not the stub's enum type
            accepted_at=self.record.accepted_at,
            metrics_address=self._metrics.address,
        )

    def tell(self) -> None:
        """Reports the current status. A live lone command is reported only once, after hold_seconds: most commands end
        before, and their end reports everything."""
        if not (self._is_lone_command and self.record.is_live):
            self.tell_now()
        elif self._holding is None:
            self._holding = asyncio.get_running_loop().call_later(self._hold_seconds, self._tell_living)

    def _tell_living(self) -> None:
        if self.record.is_live:
            self.tell_now()

    def tell_now(self) -> None:
        """Reports the current status, as the leader expects after a command."""
        self._context.on_status(self.status())

    def stop(self, order: JournalStop) -> None:
        """Adds an order to stop. May be called at any time and any number of times; orders only get stricter."""
        self._move(mark_stopping(self.record, order))
        self._ordered.set()

    async def live(self) -> None:
        """Runs all steps, and repeats them from the first if one fails. Each step follows the record and does nothing
        twice."""
        while self.record.is_live:
            try:
                await self._run_steps()
            except Exception:  # noqa: BLE001 - the top of a long-lived task: no bug here may strand the slots
                self._log.exception("a step failed; it is tried again", delay_seconds=RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)

    async def _run_steps(self) -> None:
        if self.record.phase is Phase.ACCEPTED:
            # 1. Slots: the last owner of each slot must be gone, not only asked to end.
            await self._take_slots()
            # 2. Leader: it must be heard, because otherwise the trial may run elsewhere by now.
            await self._wait_for_leader()
            # 3. Start: one runner, warm if possible. A runner that an earlier agent started is adopted.
            await self._take_turn()
            await self._start()
        # 4. Attend: until the runner has ended by itself, on request or by force.
        await self._attend()
        self._end_turn()
        # 5. Sweep: no process of the allocation may use the slots any more.
        await self._sweep()
        # 6. Conclude: the runner's report, or the evidence without one, goes into the journal and to the scheduler.
        self._conclude()

    async def _take_slots(self) -> None:
        """Waits until the slots are free. A refusal ends the allocation before anything runs.

        Tolerates: a stop during the wait, or one that an earlier agent had received.
        """
        if self.record.stop is not None:
            return
        waiting = asyncio.ensure_future(self._context.wait_for_slots(self.record))
        try:
            await self._wait_first([waiting], None)
            if waiting.done():
                self._evidence = replace(self._evidence, start_error=waiting.result())
        finally:
            waiting.cancel()

    async def _wait_for_leader(self) -> None:
        """Waits until the leader is heard. Tolerates: a stop during the wait."""
        if self.record.stop is not None or self._evidence.start_error or self._wait_for_word is None:
            return
        waiting = asyncio.ensure_future(self._wait_for_word())
        try:
            await self._wait_first([waiting], None)
        finally:
            waiting.cancel()

    async def _take_turn(self) -> None:
        """Waits for the turn of a lone command. Tolerates: a stop during the wait."""
        if not self._is_lone_command or self.record.stop is not None or self._evidence.start_error:
            return
        taking = asyncio.ensure_future(self._context.launcher.turns.take())
        try:
            await self._wait_first([taking], None)
        finally:
            if taking.done():
                self._turn = taking.result()
            else:
                taking.cancel()

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.end()

    async def _start(self) -> None:
        """Starts the runner. Tolerates: a runner that an earlier agent started without recording it."""
        if self.record.stop is not None or self._evidence.start_error:
            return
        try:
            if self._is_lone_command:
                runner, self._command_runner = await self._context.launcher.start_command(self.folder)
            else:
                runner = await self._context.launcher.start(self.folder)
        except (OSError, GanglineError) as error:
            message = f"cannot start a trial runner: {error}"
            self._evidence = replace(self._evidence, start_error=message, is_disk_fault=is_disk_fault(error))
            return
        self._adopt(runner)

    async def _attend(self) -> None:
        """Watches the runner until it ends. Tolerates: a runner that is not this agent's child, has ended already, or
        has no recorded pid."""
        runner = self.record.process or await self._find_runner()
        if runner is None:
            # If there is a report, the process of a lone command has ended or runs another command by now, and so has
            # its nursery.
            self._is_released = bool(self.record.boot_id) and self.folder.has_exit
            return
        metrics.runners.inc()
        try:
            with process_watch.opened(runner) as pidfd:
                if pidfd is not None:
                    await self._watch(runner, pidfd)
                    # Noted here, because an order that arrives during the sweep has not caused the end.
                    ended_unasked = self.record.stop is None
                    end = ProcessEnd() if self._is_released else await process_watch.read_end(pidfd)
                    self._evidence = replace(self._evidence, end=end, ended_unasked=ended_unasked)
        finally:
            metrics.runners.dec()
            self._let_go()

    async def _watch(self, runner: Process, pidfd: int) -> None:
        """Passes orders on as signals, once each, and kills the runner at its deadline. Returns when the runner has
        ended or is free."""
        ended = asyncio.ensure_future(process_watch.wait_end(pidfd))
        reused = self._command_runner
        done = asyncio.ensure_future(_never() if reused is None else reused.wait_done(self._end_turn))
        sent, exit_seen_at = None, None
        try:
            while not (ended.done() or done.done()):
                wanted = plan_signal(self.record.stop)
                if wanted is not None and wanted is not sent:
                    process_watch.send_signal(pidfd, wanted)
                    sent = wanted
                if exit_seen_at is None and self.folder.has_exit:
                    exit_seen_at = time.time()
                if self._metrics.may_come and await self._metrics.check(runner):
                    self._context.on_status(self.status())
                kill_at = plan_kill_at(self.record.stop, exit_seen_at)
                if kill_at is not None and time.time() >= kill_at:
                    self._kill(runner)
                    kill_at = None
                wait_seconds = METRICS_SECONDS if self._metrics.may_come else POLL_SECONDS
                if kill_at is not None:
                    wait_seconds = min(wait_seconds, max(0.0, kill_at - time.time()))
                await self._wait_first([ended, done], wait_seconds)
            # A signal that was sent must not reach another allocation, so such a process is not used again.
            self._is_released = done.done() and not ended.done() and sent is None and not self._evidence.was_killed
            if done.done() and not self._is_released and self._command_runner is not None:
                self._command_runner.close()
                await ended
        finally:
            ended.cancel()
            done.cancel()

    def _let_go(self) -> None:
        """Puts the process that has ended this command among the idle ones, or closes it."""
        runner, self._command_runner = self._command_runner, None
        if runner is None:
            return
        if self._is_released:
            self._context.launcher.idle.put(runner)
        else:
            runner.close()

    async def _sweep(self) -> None:
        """Kills what is left of the allocation, because it would share slots with the next trial. Tolerates: nothing is
        left, which is the usual case."""
        began_at, pause_seconds = time.monotonic(), SHORTEST_PAUSE_SECONDS
        while self._kill_groups(self.record.process, time.monotonic() - began_at < NURSERY_SECONDS):
            if time.monotonic() - began_at > SWEEP_SECONDS:
                self._log.error("processes of an ended trial survive SIGKILL; their slots are given back all the same")
                break
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
        if not self._is_released:
            await remove_leftovers(self.folder)

    def _conclude(self) -> None:
        """Records and reports the end. Tolerates: a report that is missing or unreadable. A runner that has died in its
        last steps has left at least how its ranks ended."""
        folder = self.folder
        status = self._load(folder.exit_path, folder.load_exit) or self._load(folder.outcome_path, folder.load_outcome)
        if status is None:
            report = conclude(self.record, self._evidence, self._context.agent_id, time.time())
            status = agent_pb2.AllocationStatus(exit=wire.to_proto(report))
        status.allocation_id = self.record.allocation_id
        status.accepted_at = self.record.accepted_at
        status.state = wire.enum_number(State.TERMINAL)  # type: ignore[assignment] # as above
        status.exit.agent_id = self._context.agent_id
        kind = wire.enum_member(ExitKind, status.exit.kind)
        metrics.runner_exits.labels(kind=kind or "UNKNOWN").inc()
        self._log.info("ended", kind=kind, message=status.exit.message)
        if self.record.is_live:
            self._final = status
        self._move(mark_ended(self.record, json_format.MessageToDict(status)))

    def _load(
        self, path: Path, load: Callable[[], agent_pb2.AllocationStatus | None]
    ) -> agent_pb2.AllocationStatus | None:
        try:
            return load()
        except ValueError as error:
            problem = f"its report {path} was unreadable ({error}) and is now {self.folder.move_aside(path)}"
            self._log.error("the runner's report was unreadable", problem=problem)
            self._evidence = replace(self._evidence, problem=problem)
            return None

    async def _find_runner(self) -> Process | None:
        """Returns the living runner of a record that does not name it; None if there is none."""
        while self.folder.is_locked():
            for path in (self.folder.alive_path, self.folder.lock_path):
                openers = process_watch.find_openers(path)
                if openers:
                    self._adopt(openers[0])
                    return openers[0]
            await asyncio.sleep(FIND_SECONDS)
        return None

    def _adopt(self, runner: Process | None) -> None:
        """Records the runner. None: it has ended before it could be identified."""
        self._move(mark_started(self.record, runner))
        self._log.info("its trial runner was started", pid=runner.pid if runner else None)

    def _kill(self, runner: Process) -> None:
        self._log.warning("the trial runner did not end in time; killing it", pid=runner.pid)
        self._evidence = replace(self._evidence, was_killed=True)
        self._kill_groups(runner, spares_nursery=True)

    def _kill_groups(self, runner: Process | None, spares_nursery: bool) -> bool:
        """Kills the process groups of the allocation. Returns whether any process was alive. A spared nursery starts no
        more ranks, because its runner is gone."""
        if self._is_released:
            # Runner and nursery belong to another allocation by now.
            killed = [
                process_watch.kill_group(leader) for leader in process_watch.load_leaders(self.folder.rank_pids_path)
            ]
            return any(killed)
        end_nursery = process_watch.has_group if spares_nursery else process_watch.kill_group
        was_killed = [runner is not None and process_watch.kill_group(runner)]
        was_killed += [end_nursery(leader) for leader in process_watch.load_leaders(self.folder.nursery_path)]
        was_killed += [
            process_watch.kill_group(leader) for leader in process_watch.load_leaders(self.folder.rank_pids_path)
        ]
        return any(was_killed)

    def _move(self, record: JournalRecord) -> None:
        """Changes the record, saves it, and reports a new status. A record that cannot be written is still obeyed:
        after a crash the folder's locks show the same."""
        if record == self.record:
            return
        was = (self.record.phase, self.record.status)
        self.record = record
        try:
            self._save(record)
        except OSError as error:
            self._log.error(
                "cannot write the journal; going on without", path=str(self.folder.record_path), error=str(error)
            )
        if (record.phase, record.status) != was:
            self.tell()

    def _save(self, record: JournalRecord) -> None:
        """Writes the record as durably as it must be.

        A record that follows from the runner's report on this disk is derived from it again, so it need not survive a
        power cut. For a lone command neither that record nor the one of its start is written, because its folder shows
        both.
        """
        has_report = not record.is_live and self.folder.exit_path.exists()
        if self._is_lone_command and (has_report or (record.is_live and record.stop is None)):
            return
        self.folder.save(record, is_durable=not has_report and not (record.is_live and record.boot_id))

    async def _wait_first(self, futures: Sequence[asyncio.Future[Any]], timeout_seconds: float | None) -> None:
        """Returns when one of the futures is done, a new order has arrived, or the time is over."""
        ordered = asyncio.ensure_future(self._ordered.wait())
        try:
            await asyncio.wait([*futures, ordered], timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ordered.cancel()
            self._ordered.clear()


async def _never() -> None:
    await asyncio.Event().wait()
