"""The only thread that adds to the history. Batches that arrive while a transaction runs share the next one. After its
transaction it summarises metrics (`condense.py`).

An answer is given only after the commit. A batch that the database refuses fails alone; when the database is away all
of them fail, and the trial runners send them again.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa
import structlog

from gangline.errors import GanglineError, unavailable
from services.gateway.history.condense import Condenser
from services.gateway.history.store import StoredCount, store_batches
from services.gateway.mirror import metrics
from services.gateway.mirror.ingest_record import IngestBatch

# Bounds a transaction, and so the wait of the batches after it.
MAX_RECORDS = 5000

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Order:
    batch: IngestBatch
    answer: asyncio.Future[int]


class Writer:
    """Writes batches. on_stored: called on the event loop with the ids of the experiments that have new rows."""

    def __init__(self, engine: sa.Engine, on_stored: Callable[[set[int]], None]) -> None:
        self._engine = engine
        self._condenser = Condenser(engine)
        self._on_stored = on_stored
        self._loop = asyncio.get_running_loop()
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="history-writer", daemon=True)
        self._thread.start()

    async def store(self, batch: IngestBatch) -> int:
        """Stores a batch and returns the highest stored sequence number of the spool. Raises GanglineError
        `history.*`."""
        answer: asyncio.Future[int] = self._loop.create_future()
        self._orders.put(_Order(batch, answer))
        return await answer

    async def close(self) -> None:
        """Ends the thread after it has stored all earlier batches."""
        self._orders.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while not self._is_closing:
            first = self._orders.get()
            if first is None:
                return
            self._commit(self._gather(first))

    def _gather(self, first: _Order) -> list[_Order]:
        """Returns the batches that wait by now, up to a size that keeps a transaction short."""
        orders, num_records = [first], len(first.batch.records)
        while num_records < MAX_RECORDS:
            try:
                order = self._orders.get_nowait()
            except queue.Empty:
                break
            if order is None:
                self._is_closing = True
                break
            orders.append(order)
            num_records += len(order.batch.records)
        return orders

    def _commit(self, orders: list[_Order]) -> None:
        started = time.perf_counter()
        try:
            stored, count = store_batches(self._engine, [order.batch for order in orders], time.time())
        except Exception as failure:  # noqa: BLE001  top of a long-lived thread: whatever it was, each sender is told
            self._on_failure(orders, failure)
            return
        metrics.INGEST_COMMIT_SECONDS.observe(time.perf_counter() - started)
        _count(orders, count)
        self._answer(orders, stored)
        self._condenser.note(count.reports)

    def _on_failure(self, orders: list[_Order], failure: Exception) -> None:
        is_away = isinstance(failure, sa.exc.OperationalError)
        # One batch may be the cause: each is tried by itself, so that the others are stored.
        if len(orders) > 1 and not is_away:
            for order in orders:
                self._commit([order])
            return
        metrics.INGEST_FAILURES.inc(len(orders))
        error = _explain(failure)
        log.warning("history could not be stored", error=str(failure), num_batches=len(orders))
        for order in orders:
            self._loop.call_soon_threadsafe(_fail, order.answer, error)

    def _answer(self, orders: list[_Order], stored: list[int]) -> None:
        self._loop.call_soon_threadsafe(self._on_stored, {order.batch.experiment_id for order in orders})
        for order, sequence in zip(orders, stored, strict=True):
            self._loop.call_soon_threadsafe(_succeed, order.answer, sequence)


def _count(orders: list[_Order], count: StoredCount) -> None:
    metrics.INGEST_ROWS.labels("log").inc(count.logs)
    metrics.INGEST_ROWS.labels("metrics").inc(count.metrics)
    metrics.INGEST_ROWS.labels("progress").inc(count.progress)
    metrics.INGEST_REPEATED_ROWS.inc(count.repeated)
    now = time.time()
    for order in orders:
        if order.batch.records:
            metrics.INGEST_LAG_SECONDS.observe(max(0.0, now - order.batch.records[-1].at))


def _explain(failure: Exception) -> GanglineError:
    return unavailable(
        "history.not_stored",
        f"the gateway could not store the records: {str(failure).splitlines()[0]}; send them again later",
    )


def _succeed(answer: asyncio.Future[int], sequence: int) -> None:
    if not answer.done():
        answer.set_result(sequence)


def _fail(answer: asyncio.Future[int], error: GanglineError) -> None:
    if not answer.done():
        answer.set_exception(error)
