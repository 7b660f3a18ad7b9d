"""The leader's state and the only way to change it.

Owns the order: transitions run one after another, each on the state that the earlier ones will have left. Waiting
writes are merged into one fenced transaction. Memory changes only after etcd accepted. A caller that wants a change
calls `commit`. The store decides nothing itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import structlog

from gangline.errors import Effect, ErrorKind, GanglineError, invalid, unavailable
from services.common import keys
from services.common.election import Leadership
from services.common.etcd import Delete, EtcdClient, Listing, Put
from services.common.etcd.transaction import MAX_BYTES, MAX_OPERATIONS, num_bytes_of
from services.common.leader_probe import not_leader
from services.scheduler.state import metrics
from services.scheduler.state.codec import operations_of, record_of
from services.scheduler.state.records import Draft, Records, Reference, SchedulerState, StateChange, id_of

_log = structlog.get_logger(__name__)


Transition = Callable[[Records], StateChange]

_RETRY_SECONDS = 0.5
# Limit of `commit_asked`. Its callers are refused at once when a write is stuck, or etcd silent, for that long already.
ASKED_SECONDS = 3.0
# A longer write has blocked agents' messages, heartbeats among them, so their leases are renewed after it.
STALLED_SECONDS = 2.0


async def load(client: EtcdClient) -> SchedulerState:
    """Reads all of the leader's records at one revision."""
    return state_of(await client.list(keys.ROOT))


def state_of(listing: Listing) -> SchedulerState:
    """Returns the leader's records among all listed keys."""
    records = (record_of(item) for item in listing.items)
    return SchedulerState.of((record for record in records if record is not None), listing.revision)


@dataclass
class _Write:
    transition: Transition
    done: asyncio.Future[StateChange]
    change: StateChange = field(default_factory=StateChange)
    # Whether etcd may have it: it was sent, and etcd did not refuse it.
    is_sent: bool = False


class _Batch:
    """Collects writes that go into one transaction. is_weighed: whether each change is encoded as it is taken, to count
    its bytes; otherwise only their number is bounded, and each record is encoded once, as the last change leaves it.
    """

    def __init__(self, state: SchedulerState, *, is_weighed: bool) -> None:
        self.draft = Draft(state)
        self.writes: list[_Write] = []
        self._is_weighed = is_weighed
        self._by_key: dict[str, Put | Delete] = {}
        self._references: set[Reference] = set()

    def takes(self, write: _Write, change: StateChange) -> bool:
        """Adds the change. Returns False when the transaction would grow too large.

        Raises GanglineError `state.too_large` for a change that no transaction can contain: its caller gets the error,
        and all other changes continue.
        """
        if not (self._takes_weighed(change) if self._is_weighed else self._takes_counted(change)):
            return False
        write.change = change
        self.writes.append(write)
        self.draft.add(change)
        return True

    def _takes_weighed(self, change: StateChange) -> bool:
        own = operations_of(change)
        merged = self._by_key | {operation.key: operation for operation in own}
        if not _fits(merged.values()):
            if not _fits(own):
                raise _too_large(own)
            return False
        self._by_key = merged
        return True

    def _takes_counted(self, change: StateChange) -> bool:
        own = {*((type(record), id_of(record)) for record in change.puts), *change.deletes}
        if len(self._references | own) > MAX_OPERATIONS:
            if len(own) > MAX_OPERATIONS:
                raise _too_large(operations_of(change))
            return False
        self._references |= own
        return True


def _fits(operations: Collection[Put | Delete]) -> bool:
    return len(operations) <= MAX_OPERATIONS and num_bytes_of(operations) <= MAX_BYTES


def _too_large(operations: Collection[Put | Delete]) -> GanglineError:
    return invalid(
        "state.too_large",
        f"{num_bytes_of(operations)} bytes in {len(operations)} records would have to be written at once; etcd gets at "
        f"most {MAX_BYTES} bytes and {MAX_OPERATIONS} records, what is larger belongs into code, data or checkpoints",
    )


class Store:
    """state: callers may read it, and never change it. on_committed: called with every change, in order, after memory
    shows it and before its caller continues. on_stalled: called when a write was slow to be accepted, before the next
    transition runs.
    """

    def __init__(
        self,
        leadership: Leadership,
        state: SchedulerState,
        on_committed: Callable[[StateChange], None],
        on_stalled: Callable[[], None] = lambda: None,
    ) -> None:
        self.state = state
        self.epoch = leadership.epoch
        self._leadership = leadership
        self._on_committed = on_committed
        self._on_stalled = on_stalled
        self._waiting: deque[_Write] = deque()
        self._wake = asyncio.Event()
        self._is_over = False
        # Since when the present write has been tried; None while nothing is being written.
        self._writing_since: float | None = None
        self._refusal = ""

    async def commit(self, transition: Transition) -> StateChange:
        """Returns the change that was written; empty when the transition found nothing to do.

        transition: pure; it may run more than once. A caller that is cancelled before its change was sent to etcd has
        withdrawn it. Raises the transition's exceptions, and GanglineError `scheduler.not_leader` when the term is
        over: the error's effect states whether the next leader may find the change.
        """
        return await self._enqueue(transition).done

    async def commit_asked(self, transition: Transition) -> StateChange:
        """Commits a user's change like `commit`, but answers within ASKED_SECONDS and an examination of etcd.

        Raises GanglineError `state.unwritable` with Effect.NONE when the change was withdrawn, and with Effect.UNKNOWN
        when it had been sent to etcd already: then it is written as soon as etcd takes it.
        """
        stuck_seconds = 0.0 if self._writing_since is None else time.monotonic() - self._writing_since
        give_up_at = time.monotonic() + ASKED_SECONDS - stuck_seconds
        is_heard = await self._leadership.is_heard(ASKED_SECONDS - self._leadership.silent_seconds)
        # A leader that was paused has heard nothing either, and etcd may answer now.
        reason = "" if is_heard else await self._leadership.explain_silence()
        if reason or time.monotonic() >= give_up_at:
            raise await self._unwritable(Effect.NONE, reason)
        write = self._enqueue(transition)
        try:
            async with asyncio.timeout(give_up_at - time.monotonic()):
                return await write.done
        except TimeoutError as error:
            raise await self._unwritable(Effect.UNKNOWN if write.is_sent else Effect.NONE) from error

    async def run(self) -> None:
        """Writes the waiting changes, until cancelled or Deposed."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    await self._write_batch()
        finally:
            self._give_up()

    def _enqueue(self, transition: Transition) -> _Write:
        if self._is_over:
            raise not_leader(effect=Effect.NONE)
        write = _Write(transition, asyncio.get_running_loop().create_future())
        self._waiting.append(write)
        self._wake.set()
        return write

    async def _write_batch(self) -> None:
        batch, operations = self._collect()
        merged = batch.draft.change
        if merged:
            if self._writing_since is None:
                self._writing_since = time.monotonic()
            for write in batch.writes:
                write.is_sent = True
            try:
                revision = await self._persist(operations)
            except BaseException:
                self._waiting.extendleft(reversed(batch.writes))
                raise
            if revision is None:
                await self._put_back(batch)
                return
            seconds, self._writing_since = time.monotonic() - self._writing_since, None
            self._refusal = ""
            self.state.apply(merged, revision)
            metrics.COMMITTED_OPERATIONS.observe(merged.num_operations)
            self._on_committed(merged)
            if seconds > STALLED_SECONDS:
                self._on_stalled()
        for write in batch.writes:
            if not write.done.done():
                write.done.set_result(write.change)

    async def _put_back(self, batch: _Batch) -> None:
        """Queues the batch again after a refusal of etcd: nothing was written, so callers may withdraw before the next
        try.
        """
        for write in batch.writes:
            write.is_sent = False
        self._waiting.extendleft(reversed(batch.writes))
        await asyncio.sleep(_RETRY_SECONDS)

    def _collect(self) -> tuple[_Batch, list[Put | Delete]]:
        """Returns the next transaction and its operations. Only the rare batch that is too large weighs each change,
        because encoding records is most of the work of a small change.
        """
        batch = self._gather(is_weighed=False)
        operations = operations_of(batch.draft.change)
        if not _fits(operations):
            self._waiting.extendleft(reversed(batch.writes))
            batch = self._gather(is_weighed=True)
            operations = operations_of(batch.draft.change)
        return batch, operations

    def _gather(self, *, is_weighed: bool) -> _Batch:
        batch = _Batch(self.state, is_weighed=is_weighed)
        while self._waiting:
            write = self._waiting.popleft()
            if write.done.done():
                continue
            try:
                is_taken = batch.takes(write, write.transition(batch.draft))
            except Exception as error:  # noqa: BLE001 - the caller gets it; others' writes must go on
                if not write.done.done():
                    write.done.set_exception(error)
                continue
            if not is_taken:
                self._waiting.appendleft(write)
                break
        return batch

    async def _persist(self, operations: list[Put | Delete]) -> int | None:
        """Returns the revision; None when etcd has refused the write, so that it is not there and never will be.

        While it is unknown whether etcd has applied a try, the same operations are tried again until that is settled:
        no other change may be planned on an unknown state. No other process writes while this leader leads.
        """
        while True:
            try:
                return await self._leadership.commit(operations)
            except GanglineError as error:
                if error.kind is not ErrorKind.UNAVAILABLE:
                    raise
                _log.warning("state cannot be written, trying again", reason=error.message)
                if error.effect is Effect.NONE:
                    self._refusal = error.message
                    if not self._leadership.is_unsettled:
                        return None
                await asyncio.sleep(_RETRY_SECONDS)

    async def _unwritable(self, effect: Effect, reason: str = "") -> GanglineError:
        reason = self._refusal or reason or await self._leadership.explain_silence()
        reason = reason or "etcd is slow to take writes; try again"
        if self._is_over:
            return not_leader(effect=effect)
        return unavailable("state.unwritable", reason, effect)

    def _give_up(self) -> None:
        self._is_over = True
        for write in self._waiting:
            if not write.done.done():
                write.done.set_exception(not_leader(effect=Effect.UNKNOWN if write.is_sent else Effect.NONE))
        self._waiting.clear()
