"""The buffer between the calls and the database. A call only appends to it, so no call waits for the database.

One task writes the records in batches and in their order. While the database is away the records wait here, up to a
number of bytes; further ones are dropped. How many were dropped is counted in a metric, said in one line of the
gateway's log, and written as a record of its own once there is room again.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from gangline.domain.audit import AuditRecord
from gangline.errors import ErrorKind, GanglineError
from services.common.concurrency import cancel
from services.gateway.audit.action import DROPPED
from services.gateway.audit.change import write_changes
from services.gateway.mirror import metrics

# Records of one transaction.
MAX_BATCH = 500
# Pause before a batch that is not full is written, so that it has several records. A gateway that is killed loses so
# much at most while the database answers.
LINGER_SECONDS = 0.5
# Bytes of the records that wait, by an estimate.
MAX_WAITING_BYTES = 32 << 20
_RECORD_BYTES = 800
# Pauses while the database is away.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 15.0
# A gateway that stops tries so long to write what waits.
CLOSE_SECONDS = 10.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """A record with its random key. The key makes a record that is written again appear once."""

    key: str
    record: AuditRecord

    @property
    def num_bytes(self) -> int:
        return _RECORD_BYTES + len(self.record.changes_json)


# Writes entries in their order. Raises GanglineError of the kind UNAVAILABLE while the database is away.
Store = Callable[[Sequence[Entry]], None]


class AuditLog:
    """Call `start` and `close` once each."""

    def __init__(self, store: Store, max_bytes: int = MAX_WAITING_BYTES) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._waiting: deque[Entry] = deque()
        self._num_bytes = 0
        self._num_dropped = 0
        self._dropped_since = 0.0
        self._filled = asyncio.Event()
        self._closing = asyncio.Event()
        # A thread of its own, because calls of a storage that hangs may hold all threads of the event loop.
        self._thread = ThreadPoolExecutor(1, "audit")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="audit")

    def add(self, record: AuditRecord) -> None:
        """Takes a record, or drops it if there is no room."""
        entry = Entry(uuid.uuid4().hex, record)
        if self._num_bytes + entry.num_bytes > self._max_bytes:
            self._drop(1)
            return
        self._append(entry)

    def _append(self, entry: Entry) -> None:
        self._waiting.append(entry)
        self._num_bytes += entry.num_bytes
        metrics.AUDIT_WAITING.set(len(self._waiting))
        self._filled.set()

    def _drop(self, count: int) -> None:
        metrics.AUDIT_DROPPED.inc(count)
        if not self._num_dropped:
            self._dropped_since = time.time()
            log.error("records of the audit log are dropped until the database takes them", waiting=len(self._waiting))
        self._num_dropped += count

    async def close(self) -> None:
        """Writes what waits, for a limited time, and ends the task."""
        self._closing.set()
        self._filled.set()
        if self._task is not None:
            done, _ = await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
            if not done:
                await cancel(self._task)
        num_lost = len(self._waiting) + self._num_dropped
        if num_lost:
            log.error("records of the audit log are lost because the database did not take them", count=num_lost)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            await self._filled.wait()
            if len(self._waiting) < MAX_BATCH:
                await self._rest(LINGER_SECONDS)
            if await self._write():
                pause = FIRST_PAUSE_SECONDS
                self._note_dropped()
            elif self._closing.is_set():
                return
            else:
                await self._rest(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            if not self._waiting:
                if self._closing.is_set():
                    return
                self._filled.clear()

    async def _rest(self, seconds: float) -> None:
        """Returns earlier when the gateway stops."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return

    async def _write(self) -> bool:
        """Writes the oldest records. Returns False while the database is away."""
        size = min(len(self._waiting), MAX_BATCH)
        batch = [self._waiting[index] for index in range(size)]
        if not batch:
            return True
        problem = await self._try(batch)
        if problem is not None and not _is_away(problem) and size > 1:
            # One record may be the cause: each is tried by itself, so that the others are written.
            for entry in batch:
                problem = await self._try([entry])
                if problem is not None and _is_away(problem):
                    return False
                self._finish([entry], problem)
            return True
        if problem is not None and _is_away(problem):
            return False
        self._finish(batch, problem)
        return True

    async def _try(self, batch: Sequence[Entry]) -> Exception | None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._store, batch)
        except Exception as failure:  # noqa: BLE001  top of a long-lived task: the records are tried again or counted
            metrics.AUDIT_FAILURES.inc()
            log.warning("the audit log could not be written", reason=str(failure), waiting=len(self._waiting))
            return failure
        return None

    def _finish(self, batch: Sequence[Entry], problem: Exception | None) -> None:
        """Takes the oldest records out of the buffer, which were written, or which the database refuses."""
        for entry in batch:
            self._waiting.popleft()
            self._num_bytes -= entry.num_bytes
        metrics.AUDIT_WAITING.set(len(self._waiting))
        if problem is None:
            metrics.AUDIT_RECORDS.inc(len(batch))
        else:
            self._drop(len(batch))

    def _note_dropped(self) -> None:
        """Appends the record that stands for those that were dropped."""
        if not self._num_dropped:
            return
        changes = write_changes({}, {"records": self._num_dropped, "since": round(self._dropped_since, 3)})
        self._num_dropped = 0
        self._append(
            Entry(uuid.uuid4().hex, AuditRecord(0, time.time(), "cluster", "gateway", "", "", "gateway", DROPPED,
                                                "audit", "", changes_json=changes))
        )  # fmt: skip


def _is_away(problem: Exception) -> bool:
    return isinstance(problem, GanglineError) and problem.kind is ErrorKind.UNAVAILABLE
