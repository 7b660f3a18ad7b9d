"""Summarises stored metrics in blocks (`metric_block.py`), so that a long series is read without its reports.

A block has the next BLOCK_REPORTS reports of one trial and group, in the order of their rows, whatever batches they
are of. Rows become visible in the order of their ids, so no report comes later into a block that is stored. A cursor
for each trial and group moves in the transaction that stores the blocks. So gateways that share a database and do the
same work at the same time store each block once. Everything here blocks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
import structlog

from services.gateway.history import table
from services.gateway.history.attempt import extent_of
from services.gateway.history.database import upsert, writing
from services.gateway.history.metric_block import BLOCK_REPORTS, Block, Report, build_blocks, pack
from services.gateway.mirror import metrics

# Tries to store a block after one transaction of the writer, so that a backlog holds up no trial runner.
TRIES_AT_ONCE = 4
# Trials and groups whose reports are counted. A forgotten one is tried again when it reports.
MAX_COUNTED = 20_000

log = structlog.get_logger(__name__)

Key = tuple[str, str]


class Condenser:
    """Summarises what the writer has stored. Only the writer's thread calls it."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        # Reports without a block, at most. Those from before the gateway's start are not known.
        self._num_waiting: dict[Key, int] = {}

    def note(self, num_reports: Counter[Key]) -> None:
        """Counts stored reports by trial and group, and stores blocks that are complete. A failure is logged: the
        reports themselves are stored."""
        for key, num in num_reports.items():
            self._num_waiting[key] = self._num_waiting.get(key, BLOCK_REPORTS) + num
        due = [key for key in num_reports if self._num_waiting[key] >= BLOCK_REPORTS]
        for key in due[:TRIES_AT_ONCE]:
            try:
                num_read = condense_next(self._engine, *key)
            except sa.exc.DBAPIError as failure:
                metrics.CONDENSE_FAILURES.inc()
                log.warning("metrics could not be summarised, trying again", trial_id=key[0], error=str(failure.orig))
            else:
                # After a block, further ones may be complete.
                self._num_waiting[key] = num_read
        while len(self._num_waiting) > MAX_COUNTED:
            del self._num_waiting[next(iter(self._num_waiting))]


def condense_next(engine: sa.Engine, trial_id: str, group: str) -> int:
    """Stores the next block of a trial's group, unless it is incomplete. Returns the number of its reports, which is
    BLOCK_REPORTS only for a complete one."""
    with engine.connect() as connection:
        after_id = find_cursor(connection, trial_id, group)
        reports = read_reports(connection, trial_id, group, after_id, BLOCK_REPORTS)
    if len(reports) < BLOCK_REPORTS:
        return len(reports)
    blocks = build_blocks(reports)
    with writing(engine) as connection:
        # Another gateway may have stored the block, and the experiment may have been erased.
        is_next = find_cursor(connection, trial_id, group) == after_id
        if is_next and connection.scalar(sa.select(table.metrics.c.id).where(table.metrics.c.id == reports[-1].row_id)):
            _insert(connection, trial_id, group, reports, blocks)
    return BLOCK_REPORTS


def find_cursor(connection: sa.Connection, trial_id: str, group: str) -> int:
    """Returns the id of the last report that a block has; 0 if there is none."""
    cursors = table.metric_block_cursors
    last_id = connection.scalar(
        sa.select(cursors.c.last_id).where(cursors.c.trial_id == trial_id, cursors.c.metric_group == group)
    )
    return last_id or 0


def read_reports(connection: sa.Connection, trial_id: str, group: str, after_id: int, limit: int) -> list[Report]:
    """Returns the next reports of a trial's group after a row, oldest first."""
    rows = table.metrics
    selected = connection.execute(
        sa.select(rows.c.id, rows.c.at, rows.c.batches_completed, rows.c.attempt, rows.c.metrics_json)
        .where(rows.c.trial_id == trial_id, rows.c.metric_group == group, rows.c.id > after_id)
        .order_by(rows.c.id)
        .limit(limit)
    ).all()
    # One call of the parser for all takes a fifth of the time of one for each.
    parsed = json.loads(f"[{','.join(row[4] for row in selected)}]")
    return [
        Report(row_id, at, batches, attempt or 0, metrics)
        for (row_id, at, batches, attempt, _), metrics in zip(selected, parsed, strict=True)
    ]


def _insert(
    connection: sa.Connection, trial_id: str, group: str, reports: Sequence[Report], blocks: dict[str, Block]
) -> None:
    place: dict[str, Any] = {"trial_id": trial_id, "metric_group": group, "last_id": reports[-1].row_id}
    extent = extent_of([(report.attempt, report.batches_completed) for report in reports])
    if blocks:
        connection.execute(
            sa.insert(table.metric_blocks),
            [
                {
                    **place,
                    "metric": metric,
                    "first_id": reports[0].row_id,
                    "summary": pack([block.summary]),
                    "spans": pack(block.spans),
                    **asdict(extent),
                }
                for metric, block in blocks.items()
            ],
        )
    upsert(connection, table.metric_block_cursors, [place])
