"""Reads history. The queries block and run in a few threads of their own; the event loop only awaits them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import sqlalchemy as sa

from gangline.domain.history import MetricSeries, MetricsPoint, Newest, ProgressPoint, StoredLog, StoredMetrics
from gangline.domain.state import UsageGroup
from gangline.domain.usage import AllocationUsage, UsageEntry
from gangline.errors import unavailable
from services.gateway.history import log_scan, table
from services.gateway.history.attempt import EVERY_BATCH, BatchRange, of_attempt
from services.gateway.history.condense import condense_next
from services.gateway.history.database import reading
from services.gateway.history.log_scan import ALL_LINES, LogPage, LogQuery, TailStep, in_scope
from services.gateway.history.series import has_long_tail, read_metric_names, read_series
from services.gateway.history.usage import read_recent_usage, read_usage
from services.gateway.mirror.ingest_record import Scope

# How long a reader waits while reports of an earlier version are summarised.
SUMMARISE_SECONDS = 20.0
# Queries at a time; further ones wait.
NUM_THREADS = 4
# SQLite allows a few thousand bound values in a statement, PostgreSQL 65 thousand.
MAX_IDS = 900

# Values of metrics, beside their numbers, in one page. Four times as much fits into a message.
MAX_PAGE_VALUE_BYTES = 1 << 20
# Reports that are fetched at a time.
_FETCH_ROWS = 100

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """Holds reports of metrics, the oldest first."""

    rows: list[StoredMetrics]
    is_last: bool  # whether there are no more by now


class Reader:
    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="history-reader")

    async def logs_after(self, scope: Scope, after_id: int, limit: int, query: LogQuery = ALL_LINES) -> LogPage:
        """Returns the next matching rows with a greater id, the oldest first. With a selective query a page may have
        fewer rows than `limit`, or none, before the last one."""
        return await self._read(lambda connection: log_scan.scan_forward(connection, scope, query, after_id, limit))

    async def find_tail(self, scope: Scope, num_lines: int, query: LogQuery = ALL_LINES) -> int:
        """Returns the id after which exactly the last so many matching log rows come. Other callers are served between
        the steps."""
        if not query.is_selective:
            return await self._read(lambda connection: log_scan.find_tail(connection, scope, num_lines))
        newest_id = await self._read(lambda connection: log_scan.newest_id(connection, scope))
        step = TailStep(0, newest_id + 1, None, is_done=False)
        while not step.is_done:
            previous = step
            step = await self._read(
                lambda connection, previous=previous: log_scan.scan_backward(  # type: ignore[misc]
                    connection, scope, query, previous, num_lines
                )
            )
        return newest_id if step.first_id is None else step.first_id - 1

    async def logs_before(
        self, scope: Scope, before_id: int, limit: int, query: LogQuery, seconds: float
    ) -> tuple[list[StoredLog], int | None]:
        """Returns the last matching rows with a smaller id, oldest first, and the id before which further ones may be;
        None at the beginning. Ends with fewer rows after so many seconds."""
        deadline = time.monotonic() + seconds
        step = TailStep(0, before_id, None, is_done=False)
        while not step.is_done and time.monotonic() < deadline:
            previous = step
            step = await self._read(
                lambda connection, previous=previous: log_scan.scan_backward(  # type: ignore[misc]
                    connection, scope, query, previous, limit
                )
            )
        rows: list[StoredLog] = []
        after_id = (step.first_id or before_id) - 1
        # The matching rows from the first one on are known; those from `before_id` on are not asked for.
        while len(rows) < step.num_matches:
            missing = step.num_matches - len(rows)
            page = await self.logs_after(scope, after_id, missing, query)
            rows += page.rows
            after_id = page.last_id
            if page.is_last:
                break
        is_begin = step.is_done and step.num_matches < limit
        return [row for row in rows if row.id < before_id], None if is_begin else step.before_id

    async def find_log_time(self, scope: Scope, at: float) -> int:
        """Returns the id of the first row of this time or later, as far as rows are in the order of their times."""
        return await self._read(lambda connection: log_scan.find_time(connection, scope, at))

    async def metrics_after(self, scope: Scope, after_id: int, limit: int, *, has_values: bool = True) -> MetricsPage:
        """Returns at most `limit` reports; fewer where their values reach MAX_PAGE_VALUE_BYTES. has_values: whether
        metrics that are no numbers are read too."""
        return await self._read(lambda connection: _metrics_after(connection, scope, after_id, limit, has_values))

    async def metrics_of(self, trial_ids: Sequence[str], after_id: int, limit: int) -> list[StoredMetrics]:
        """Returns the next reports of these trials, at most `limit`, without metrics that are no numbers. A newer
        attempt replaces older ones."""
        return await self._read(lambda connection: _metrics_of(connection, trial_ids, after_id, limit))

    async def newest_metrics_id(self) -> int:
        """Returns the id of the newest stored report of all trials; 0 without one."""
        newest = sa.select(sa.func.max(table.metrics.c.id))
        return await self._read(lambda connection: connection.scalar(newest) or 0)

    async def series(
        self, scope: Scope, metric: str, max_points: int, *, batch_range: BatchRange = EVERY_BATCH
    ) -> MetricSeries:
        """Returns a metric of the scope's trial in at most max_points points.

        Reports of an earlier version are summarised first;
        other callers are served between the steps. Raises GanglineError `history.summarising`."""
        trial_id, group, metric = scope.trial_id, table.storable(scope.group), table.storable(metric)
        selected = replace(scope, group=group)
        deadline = time.monotonic() + SUMMARISE_SECONDS
        while True:
            found = await self._read(
                lambda connection: read_series(connection, selected, metric, max_points, batch_range=batch_range)
            )
            if found is not None:
                return found
            while await self._read(lambda connection: has_long_tail(connection, trial_id, group)):
                if time.monotonic() > deadline:
                    raise unavailable(
                        "history.summarising",
                        f"the reports of trial {trial_id} are being summarised for their first reader; ask again in "
                        "some seconds",
                    )
                await self._run(lambda: condense_next(self._engine, trial_id, group))

    async def metric_names(self, trial_ids: Sequence[str]) -> set[tuple[str, str]]:
        """Returns each metric that one of the trials has reported, with its group. Other callers are served between the
        trials."""
        names: set[tuple[str, str]] = set()
        for trial_id in trial_ids:
            names |= await self._read(
                lambda connection, trial_id=trial_id: read_metric_names(connection, trial_id)  # type: ignore[misc]
            )
        return names

    async def newest(self, trial_ids: Sequence[str]) -> Mapping[str, Newest]:
        """Returns the newest history of each trial that has any."""
        return await self._read(lambda connection: _newest(connection, trial_ids))

    async def usage(
        self, since: float, until: float, by: UsageGroup, recent_since: float
    ) -> tuple[list[UsageEntry], list[AllocationUsage]]:
        """Returns the usage of a period: added up for allocations that ended before `recent_since`, and one by one for
        later ones."""

        def query(connection: sa.Connection) -> tuple[list[UsageEntry], list[AllocationUsage]]:
            entries = read_usage(connection, since, until, by, recent_since)
            return entries, read_recent_usage(connection, recent_since)

        return await self._read(query)

    def close(self) -> None:
        self._threads.shutdown()

    async def _read(self, query: Callable[[sa.Connection], T]) -> T:
        def run() -> T:
            with reading(self._engine) as connection:
                return query(connection)

        return await self._run(run)

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except sa.exc.OperationalError as failure:
            raise unavailable(
                "history.unreadable", f"the history cannot be read now: {str(failure.orig).splitlines()[0]}"
            ) from failure


def _metrics_after(connection: sa.Connection, scope: Scope, after_id: int, limit: int, has_values: bool) -> MetricsPage:
    metrics = table.metrics
    conditions = [metrics.c.id > after_id, *in_scope(metrics, scope), *of_attempt(scope.attempt)]
    if scope.group:
        conditions.append(metrics.c.metric_group == table.storable(scope.group))
    columns = [column for column in metrics.c if has_values or column is not metrics.c.values_json]
    selected = sa.select(*columns).where(*conditions).order_by(metrics.c.id).limit(limit)
    rows: list[StoredMetrics] = []
    num_bytes = 0
    # Rows are fetched in steps, because the values of a whole page may not fit into memory.
    for row in connection.execute(selected, execution_options={"yield_per": _FETCH_ROWS}):
        values_json = (row.values_json or "") if has_values else ""
        rows.append(StoredMetrics(row.id, row.trial_id, row.at, table.point_of(row, values_json), row.attempt or 0))
        num_bytes += len(values_json)
        if num_bytes >= MAX_PAGE_VALUE_BYTES:
            return MetricsPage(rows, is_last=False)
    return MetricsPage(rows, is_last=len(rows) < limit)


def _metrics_of(connection: sa.Connection, trial_ids: Sequence[str], after_id: int, limit: int) -> list[StoredMetrics]:
    rows = table.metrics
    columns = [column for column in rows.c if column is not rows.c.values_json]
    wanted = [rows.c.trial_id.in_(trial_ids[:MAX_IDS]), rows.c.id > after_id, *of_attempt(None)]
    selected = connection.execute(sa.select(*columns).where(*wanted).order_by(rows.c.id).limit(limit))
    return [StoredMetrics(row.id, row.trial_id, row.at, table.point_of(row), row.attempt or 0) for row in selected]


def _newest(connection: sa.Connection, trial_ids: Sequence[str]) -> dict[str, Newest]:
    newest_by_trial_id: dict[str, Newest] = {}
    for start in range(0, len(trial_ids), MAX_IDS):
        part = trial_ids[start : start + MAX_IDS]
        points = _newest_points(connection, part)
        progress = _newest_progress(connection, part)
        for trial_id in {*progress, *(trial_id for trial_id, _ in points)}:
            point, attempt = progress.get(trial_id, (None, 0))
            training, validation = (points.get((trial_id, group)) for group in ("training", "validation"))
            newest_by_trial_id[trial_id] = Newest(point, training, validation, attempt)
    return newest_by_trial_id


def _newest_points(connection: sa.Connection, trial_ids: Sequence[str]) -> dict[tuple[str, str], MetricsPoint]:
    newest = table.newest_metrics
    rows = connection.execute(sa.select(newest).where(newest.c.trial_id.in_(trial_ids)))
    return {(row.trial_id, row.metric_group): table.point_of(row) for row in rows}


def _newest_progress(connection: sa.Connection, trial_ids: Sequence[str]) -> dict[str, tuple[ProgressPoint, int]]:
    """Returns the newest progress of each trial, with the attempt that reported it."""
    progress = table.progress
    rows = connection.execute(sa.select(progress).where(progress.c.trial_id.in_(trial_ids)))
    return {
        row.trial_id: (
            ProgressPoint(row.batches_completed, row.batches_total, row.samples_per_second),
            row.attempt or 0,
        )
        for row in rows
    }
