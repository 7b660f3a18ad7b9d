"""Stores the slots that ended allocations have held, and adds them up. It blocks, so it runs in threads.

A row is never changed: every gateway writes the same one, and the first write counts. Rows stay when their experiment
is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gangline.domain.state import UsageGroup
from gangline.domain.usage import AllocationUsage, AttemptUsage, UsageEntry
from services.gateway.history import table
from services.gateway.history.database import writing

# Rows of one transaction, so that trial runners' records are stored in between.
MAX_ROWS = 1000

_ROWS = table.allocation_usage
_COLUMN_OF = {
    UsageGroup.OWNER: _ROWS.c.owner,
    UsageGroup.POOL: _ROWS.c.pool,
    UsageGroup.EXPERIMENT: _ROWS.c.experiment_id,
}


def store_usage(engine: sa.Engine, records: Sequence[AllocationUsage]) -> None:
    for start in range(0, len(records), MAX_ROWS):
        rows = [_row_of(record) for record in records[start : start + MAX_ROWS]]
        with writing(engine) as connection:
            is_sqlite = connection.dialect.name == "sqlite"
            insert = sqlite.insert(_ROWS) if is_sqlite else postgresql.insert(_ROWS)
            connection.execute(insert.on_conflict_do_nothing(), rows)


def read_usage(
    connection: sa.Connection, since: float, until: float, by: UsageGroup, before: float
) -> list[UsageEntry]:
    """Returns the usage in a period by allocations that ended before this time, added up."""
    seconds = sa.case((_ROWS.c.ended_at > until, until), else_=_ROWS.c.ended_at) - sa.case(
        (_ROWS.c.started_at < since, since), else_=_ROWS.c.started_at
    )
    key = _COLUMN_OF[by]
    rows = connection.execute(
        sa.select(
            key.label("key"),
            sa.func.sum(_ROWS.c.cpu_slots * seconds).label("cpu"),
            sa.func.sum(_ROWS.c.gpu_slots * seconds).label("gpu"),
            sa.func.count().label("num_allocations"),
        )
        .where(_ROWS.c.ended_at > since, _ROWS.c.started_at < until, _ROWS.c.ended_at < before)
        .group_by(key)
    )
    return [UsageEntry(str(row.key), float(row.cpu), float(row.gpu), row.num_allocations) for row in rows]


def read_recent_usage(connection: sa.Connection, since: float) -> list[AllocationUsage]:
    """Returns the allocations that have ended since then."""
    return [_record_of(row) for row in connection.execute(sa.select(_ROWS).where(_ROWS.c.ended_at >= since))]


def _row_of(record: AllocationUsage) -> dict[str, Any]:
    usage = record.usage
    return {
        "allocation_id": record.allocation_id,
        "experiment_id": record.experiment_id,
        "owner": table.storable(record.owner),
        "pool": table.storable(usage.pool),
        "cpu_slots": usage.cpu_slots,
        "gpu_slots": usage.gpu_slots,
        "started_at": usage.started_at,
        "ended_at": usage.ended_at,
    }


def _record_of(row: Any) -> AllocationUsage:
    attempt = int(row.allocation_id.rpartition(".")[2])
    usage = AttemptUsage(attempt, row.pool, row.cpu_slots, row.gpu_slots, row.started_at, row.ended_at)
    return AllocationUsage(row.allocation_id, row.experiment_id, row.owner, usage)
