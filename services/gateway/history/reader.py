"""Reads history. The queries block and run in a few threads of their own; the event loop only awaits them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import sqlalchemy as sa

from gangline.domain.history import LogLine, MetricsPoint, Newest, ProgressPoint, StoredLog, StoredMetrics
from gangline.domain.state import UsageGroup
from gangline.domain.usage import AllocationUsage, UsageEntry
from gangline.errors import unavailable
from services.gateway.history import table
from services.gateway.history.usage import read_recent_usage, read_usage
from services.gateway.mirror.ingest_record import Scope

# Queries at a time; further ones wait.
NUM_THREADS = 4
# SQLite allows a few thousand bound values in a statement, PostgreSQL 65 thousand.
MAX_IDS = 900

T = TypeVar("T")


class Reader:
    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="history-reader")

    async def logs_after(self, scope: Scope, after_id: int, limit: int) -> list[StoredLog]:
        """Returns the next rows with a greater id, the oldest first."""
        return await self._read(lambda connection: _logs_after(connection, scope, after_id, limit))

    async def find_tail(self, scope: Scope, num_lines: int) -> int:
        """Returns the id after which exactly the last so many log rows come."""
        return await self._read(lambda connection: _find_tail(connection, scope, num_lines))

    async def metrics_after(self, scope: Scope, after_id: int, limit: int) -> list[StoredMetrics]:
        return await self._read(lambda connection: _metrics_after(connection, scope, after_id, limit))

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
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, query)

    def _run(self, query: Callable[[sa.Connection], T]) -> T:
        try:
            with self._engine.connect() as connection:
                return query(connection)
        except sa.exc.OperationalError as failure:
            raise unavailable(
                "history.unreadable", f"the history cannot be read now: {str(failure.orig).splitlines()[0]}"
            ) from failure


def _of_scope(rows: sa.Table, scope: Scope) -> list[sa.ColumnElement[bool]]:
    if scope.trial_id:
        conditions = [rows.c.trial_id == scope.trial_id]
    else:
        conditions = [rows.c.experiment_id == scope.experiment_id]
    if scope.group and "metric_group" in rows.c:
        conditions.append(rows.c.metric_group == table.storable(scope.group))
    return conditions


def _page(connection: sa.Connection, rows: sa.Table, scope: Scope, after_id: int, limit: int) -> sa.Result[Any]:
    return connection.execute(
        sa.select(rows).where(rows.c.id > after_id, *_of_scope(rows, scope)).order_by(rows.c.id).limit(limit)
    )


def _logs_after(connection: sa.Connection, scope: Scope, after_id: int, limit: int) -> list[StoredLog]:
    return [
        StoredLog(row.id, row.trial_id, row.at, LogLine(row.rank, row.agent_id, row.stream, row.text))
        for row in _page(connection, table.logs, scope, after_id, limit)
    ]


def _find_tail(connection: sa.Connection, scope: Scope, num_lines: int) -> int:
    logs = table.logs
    before_tail = connection.scalar(
        sa.select(logs.c.id).where(*_of_scope(logs, scope)).order_by(logs.c.id.desc()).offset(num_lines).limit(1)
    )
    return before_tail or 0


def _metrics_after(connection: sa.Connection, scope: Scope, after_id: int, limit: int) -> list[StoredMetrics]:
    return [
        StoredMetrics(row.id, row.trial_id, row.at, _point(row))
        for row in _page(connection, table.metrics, scope, after_id, limit)
    ]


def _newest(connection: sa.Connection, trial_ids: Sequence[str]) -> dict[str, Newest]:
    newest_by_trial_id: dict[str, Newest] = {}
    for start in range(0, len(trial_ids), MAX_IDS):
        part = trial_ids[start : start + MAX_IDS]
        points = _newest_points(connection, part)
        progress = _newest_progress(connection, part)
        for trial_id in {*progress, *(trial_id for trial_id, _ in points)}:
            newest_by_trial_id[trial_id] = Newest(
                progress.get(trial_id), points.get((trial_id, "training")), points.get((trial_id, "validation"))
            )
    return newest_by_trial_id


def _newest_points(connection: sa.Connection, trial_ids: Sequence[str]) -> dict[tuple[str, str], MetricsPoint]:
    newest = table.newest_metrics
    rows = connection.execute(sa.select(newest).where(newest.c.trial_id.in_(trial_ids)))
    return {(row.trial_id, row.metric_group): _point(row) for row in rows}


def _newest_progress(connection: sa.Connection, trial_ids: Sequence[str]) -> dict[str, ProgressPoint]:
    progress = table.progress
    rows = connection.execute(sa.select(progress).where(progress.c.trial_id.in_(trial_ids)))
    return {
        row.trial_id: ProgressPoint(row.batches_completed, row.batches_total, row.samples_per_second) for row in rows
    }


def _point(row: Any) -> MetricsPoint:
    return MetricsPoint(row.metric_group, row.batches_completed, json.loads(row.metrics_json))
