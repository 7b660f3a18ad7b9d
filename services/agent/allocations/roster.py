"""The allocations of this agent: the lifecycle of each, the use of slots, and the recovery from the journal.

Owns two invariants. A slot has one live allocation here, whatever the scheduler orders. An allocation's folder exists
as long as its lifecycle. It uses no stream: the agent passes commands to it and receives statuses through `on_status`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import structlog
from google.protobuf import json_format

from gangline.domain.allocation import ExitReport
from gangline.domain.id import describe_allocations
from gangline.domain.settled.reading import settle
from gangline.domain.state import ExitKind, State
from gangline.protocol import wire
from gangline.v1 import agent_pb2, runner_pb2
from services.agent.allocations import process_watch
from services.agent.allocations.command_check import refuse_slots
from services.agent.allocations.command_runner import is_lone_command
from services.agent.allocations.folder import AllocationFolder
from services.agent.allocations.journal import Journal, Survey, remove_folders
from services.agent.allocations.journal_record import JournalRecord, JournalStop, Phase, find_holders, mark_ended
from services.agent.allocations.launcher import Launcher
from services.agent.allocations.lifecycle import AllocationLifecycle, LifecycleContext, hold_seconds_of
from services.agent.allocations.recovery import RecoveryVerdict, plan_recovery
from services.agent.machine import metrics
from services.common.concurrency import cancel
from services.common.disk_fault import is_disk_fault

# Limit for a stopped trial to release its slots. The scheduler's own deadline for the gang ends the wait earlier.
SLOT_SECONDS = 120.0
# Grace of a live allocation that the scheduler does not know any more.
FORGET_GRACE_SECONDS = 10.0
# Forgotten folders are removed once none was added for TIDY_SECONDS, but at the latest after LONGEST_UNTIDY_SECONDS or
# with MAX_UNTIDY folders. When ext4 makes an inode, it passes over each inode that was freed within the last minutes.
# So removing folders while dozens of commands arrive slows down the start of each of them.
TIDY_SECONDS = 2.0
LONGEST_UNTIDY_SECONDS = 30.0
MAX_UNTIDY = 2000
# So many folders are removed at a time, with a pause after them: hundreds at once would delay an etcd on the same disk.
FOLDERS_AT_A_TIME = 25
PAUSE_SECONDS = 0.25

log = structlog.get_logger(__name__)


class Roster:
    """All live and ended allocations of this agent. All methods run on the event loop. on_status is called with every
    status after it is in the journal."""

    def __init__(
        self,
        agent_id: str,
        journal: Journal,
        launcher: Launcher,
        on_status: Callable[[agent_pb2.AllocationStatus], None],
        *,
        wait_until_heard: Callable[[], Awaitable[None]] | None = None,
        ask_leader: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """wait_until_heard, ask_leader: see LifecycleContext."""
        self._agent_id = agent_id
        self._journal = journal
        self._on_status = on_status
        self._lifecycles: dict[str, AllocationLifecycle] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._unwanted: set[str] = set()
        self._changed = asyncio.Event()
        self._tidying: asyncio.Task[None] | None = None
        self._num_untidy = 0
        self._dropped = asyncio.Event()
        self._context = LifecycleContext(
            agent_id, launcher, self._wait_for_slots, on_status, wait_until_heard, ask_leader
        )

    @property
    def records(self) -> list[JournalRecord]:
        return [lifecycle.record for lifecycle in list(self._lifecycles.values())]

    def find(self, allocation_id: str) -> AllocationLifecycle | None:
        return self._lifecycles.get(allocation_id)

    def is_live(self, allocation_id: str) -> bool:
        """Returns whether this agent has the allocation and it has not ended."""
        lifecycle = self.find(allocation_id)
        return lifecycle is not None and lifecycle.record.is_live

    def statuses(self, ended_only: bool = False) -> list[agent_pb2.AllocationStatus]:
        return [
            lifecycle.status()
            for lifecycle in self._lifecycles.values()
            if not (ended_only and lifecycle.record.is_live)
        ]

    def recover(self) -> None:
        """Continues the allocations of the journal. Called once, before the first command."""
        for survey in self._journal.survey():
            verdict = plan_recovery(survey.findings)
            log.info("found in the journal", allocation_id=survey.folder.allocation_id, verdict=verdict.value)
            self._take_up(survey, verdict)

    def accept(self, spec: runner_pb2.RunnerSpec, slot_ids: tuple[str, ...], refusal: str) -> bool:
        """Begins a new allocation. A refused one is recorded as ended before it began. Returns whether it began.

        Raises GanglineError `id.allocation` for an invalid id.
        """
        folder = self._journal.folder(spec.allocation.id)
        settled = settle(spec.config_json)
        is_lone = is_lone_command(spec, settled)
        boot_id = process_watch.boot_id() if is_lone else ""
        record = JournalRecord(
            spec.allocation.id, spec.allocation.epoch, slot_ids, accepted_at=time.time(), boot_id=boot_id
        )
        refusal = refusal or refuse_slots(self.records, record.allocation_id, slot_ids)
        if refusal:
            # Without slots, because a refused allocation must not hold the slots that it asked for.
            record = self._ended(replace(record, slot_ids=()), ExitKind.START_FAILED, refusal)
        try:
            folder.create(spec, record)
        except OSError as error:
            # An allocation that a restarted agent would not find must not run.
            message = f"cannot write the journal in {folder.path}: {error}"
            kind = ExitKind.AGENT_DISK if is_disk_fault(error) else ExitKind.START_FAILED
            record = self._ended(record, kind, message)
        hold_seconds = hold_seconds_of(spec.allocation)
        # A user's command must not begin twice.
        is_task = settled.task is not None
        self._begin(folder, record, is_lone_command=is_lone, runs_once=is_task, hold_seconds=hold_seconds)
        self._lifecycles[record.allocation_id].tell()
        return record.is_live

    def stop(self, allocation_id: str, epoch: int, order: JournalStop) -> None:
        """Stops the allocation if it is live, and reports its status in any case."""
        lifecycle = self._lifecycles.get(allocation_id)
        if lifecycle is not None and lifecycle.record.is_live:
            lifecycle.stop(order)
            self._notify()
        elif lifecycle is not None:
            lifecycle.tell_now()
        else:
            # The allocation never arrived here, or its exit is recorded already. Nothing of it is alive, as the order
            # demands.
            record = JournalRecord(allocation_id, epoch, (), accepted_at=0.0)
            record = self._ended(record, order.kind, f"it was not here to stop: {order.reason}")
            self._on_status(json_format.ParseDict(dict(record.status or {}), agent_pb2.AllocationStatus()))

    def forget(self, allocation_id: str) -> None:
        """Drops an ended allocation. A live one is killed first, because its slots may be promised to another one by
        now."""
        lifecycle = self._lifecycles.get(allocation_id)
        if lifecycle is None:
            return
        if lifecycle.record.is_live:
            self._unwanted.add(allocation_id)
            deadline_at = time.time() + FORGET_GRACE_SECONDS
            lifecycle.stop(
                JournalStop(ExitKind.KILLED, "the scheduler does not know this allocation any more", deadline_at)
            )
            self._notify()
            return
        self._drop(lifecycle)

    async def stop_all(self, grace_seconds: float, reason: str) -> None:
        """Preempts every allocation and returns when all have ended. A second call with less grace shortens the
        deadline of the first."""
        order = JournalStop(ExitKind.PREEMPTED, reason, time.time() + grace_seconds)
        for lifecycle in self._lifecycles.values():
            lifecycle.stop(order)
        await asyncio.gather(*self._tasks.values())

    async def close(self) -> None:
        """Stops watching. The runners continue."""
        await cancel(*self._tasks.values())
        self._context.launcher.idle.close()
        if self._tidying is not None:
            await cancel(self._tidying)
            self._journal.tidy()

    def _take_up(self, survey: Survey, verdict: RecoveryVerdict) -> None:
        folder, record = survey.folder, survey.record
        if verdict is RecoveryVerdict.DISCARD:
            try:
                folder.remove()
            except OSError as error:
                log.warning("cannot remove a folder of the journal", path=str(folder.path), error=str(error))
            return
        if record is None:
            record = JournalRecord(folder.allocation_id, 0, (), accepted_at=0.0, phase=Phase.RUNNING)
        if verdict is RecoveryVerdict.KILL:
            # SIGKILL leaves no report of an orderly end, which would hide that the agent gave the allocation up.
            for opener in (
                *process_watch.find_openers(folder.alive_path),
                *process_watch.find_openers(folder.lock_path),
            ):
                process_watch.kill_group(opener)
        elif verdict in {RecoveryVerdict.ADOPT, RecoveryVerdict.CONCLUDE}:
            # Whatever the record says, a start has happened, and there must never be a second one.
            record = replace(record, phase=Phase.RUNNING)
        self._begin(folder, record, survey.findings.problem)

    def _begin(
        self,
        folder: AllocationFolder,
        record: JournalRecord,
        problem: str = "",
        *,
        is_lone_command: bool = False,
        runs_once: bool = False,
        hold_seconds: float = 0.0,
    ) -> None:
        lifecycle = AllocationLifecycle(
            folder,
            record,
            self._context,
            problem,
            is_lone_command=is_lone_command,
            runs_once=runs_once,
            hold_seconds=hold_seconds,
        )
        self._lifecycles[record.allocation_id] = lifecycle
        if record.is_live:
            self._tasks[record.allocation_id] = asyncio.create_task(self._live(lifecycle))

    async def _live(self, lifecycle: AllocationLifecycle) -> None:
        await lifecycle.live()
        allocation_id = lifecycle.record.allocation_id
        self._tasks.pop(allocation_id, None)
        self._notify()
        if allocation_id in self._unwanted:
            self._drop(lifecycle)

    def _drop(self, lifecycle: AllocationLifecycle) -> None:
        allocation_id = lifecycle.record.allocation_id
        self._unwanted.discard(allocation_id)
        del self._lifecycles[allocation_id]
        try:
            self._journal.forget(lifecycle.folder)
        except OSError as error:
            log.warning(
                "cannot remove a forgotten allocation's folder", path=str(lifecycle.folder.path), error=str(error)
            )
        self._num_untidy += 1
        self._dropped.set()
        if self._tidying is None or self._tidying.done():
            self._tidying = asyncio.create_task(self._tidy())

    async def _tidy(self) -> None:
        while self._num_untidy:
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_UNTIDY_SECONDS):
                    while self._num_untidy < MAX_UNTIDY:
                        self._dropped.clear()
                        async with asyncio.timeout(TIDY_SECONDS):
                            await self._dropped.wait()
            self._num_untidy = 0
            surplus = await asyncio.to_thread(self._journal.trim)
            for start in range(0, len(surplus), FOLDERS_AT_A_TIME):
                await asyncio.to_thread(remove_folders, surplus[start : start + FOLDERS_AT_A_TIME])
                if self._num_untidy < MAX_UNTIDY:
                    await asyncio.sleep(PAUSE_SECONDS)

    async def _wait_for_slots(self, record: JournalRecord) -> str:
        """Returns "" once the slots are free; otherwise the reason why they will not be."""
        give_up_at = time.monotonic() + SLOT_SECONDS
        while holders := find_holders(self._accepted_before(record), record.allocation_id, record.slot_ids):
            refusal = refuse_slots(self._accepted_before(record), record.allocation_id, record.slot_ids)
            if refusal:
                return refusal
            left = give_up_at - time.monotonic()
            if left <= 0:
                return f"its slots are still in use by {describe_allocations(holders)} after {SLOT_SECONDS:g} s"
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()
        return ""

    def _accepted_before(self, record: JournalRecord) -> list[JournalRecord]:
        """Returns the records that this one must wait for. A later allocation is none of them: an allocation that is
        stopped before it got its slots must not wait for its successor."""
        records = self.records
        ids = [each.allocation_id for each in records]
        return records[: ids.index(record.allocation_id)]

    def _notify(self) -> None:
        """Wakes all waits for slots."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _ended(self, record: JournalRecord, kind: ExitKind, message: str) -> JournalRecord:
        """Returns the record of an allocation that ended before it began."""
        now = time.time()
        is_agents = kind in (ExitKind.START_FAILED, ExitKind.AGENT_DISK)
        report = ExitReport(
            self._agent_id,
            kind,
            message,
            failed_at=now,
            ended_at=now,
            is_agent_at_fault=is_agents,
            has_not_begun=True,
        )
        status = agent_pb2.AllocationStatus(
            allocation_id=record.allocation_id,
            state=wire.enum_number(State.TERMINAL),  # type: ignore[arg-type] # the map knows numbers, not the stub's type
            accepted_at=record.accepted_at,
            exit=wire.to_proto(report),
        )
        metrics.runner_exits.labels(kind=kind).inc()
        return mark_ended(record, json_format.MessageToDict(status))
