"""Stores ingested batches: all given ones in one transaction, each record at most once.

The cursor of a spool moves in the transaction that inserts its records, so after any crash either both are stored or
neither is. It blocks; writer.py calls it from its thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import sqlalchemy as sa

from gangline.domain.history import LogLine, MetricsPoint, ProgressPoint
from services.gateway.history import table
from services.gateway.history.attempt import Key, note_attempts
from services.gateway.history.database import upsert, writing
from services.gateway.mirror.ingest_record import IngestBatch, IngestRecord

Row = dict[str, Any]
T = TypeVar("T")


@dataclass
class StoredCount:
    """Counts what one transaction added, by kind, and the records that it left out because they were stored before."""

    logs: int = 0
    metrics: int = 0
    reports: Counter[tuple[str, str]] = field(default_factory=Counter)  # reports of metrics by trial and group
    progress: int = 0
    repeated: int = 0


@dataclass
class _Rows:
    """Holds rows to insert, and the newest rows, which replace older ones by their key."""

    logs: list[Row] = field(default_factory=list)
    metrics: list[Row] = field(default_factory=list)
    newest_by_key: dict[tuple[str, str], Row] = field(default_factory=dict)
    first_batches: dict[Key, int] = field(default_factory=dict)
    progress_by_trial_id: dict[str, Row] = field(default_factory=dict)
    stored_by_spool_id: dict[str, int] = field(default_factory=dict)
    count: StoredCount = field(default_factory=StoredCount)

    def take(self, batch: IngestBatch) -> None:
        stored = self.stored_by_spool_id.get(batch.spool_id, 0)
        for record in batch.records:
            # Sent again after an answer was lost.
            if record.sequence <= stored:
                self.count.repeated += 1
                continue
            self._take_record(batch, record)
            stored = record.sequence
        self.stored_by_spool_id[batch.spool_id] = max(stored, batch.last_sequence)

    def _take_record(self, batch: IngestBatch, record: IngestRecord) -> None:
        content = record.content
        trial_id, attempt = batch.trial_id, batch.attempt
        place = {"experiment_id": batch.experiment_id, "trial_id": trial_id, "at": record.at}
        if isinstance(content, LogLine):
            self.logs.append({**place, **_log_row(content)})
            self.count.logs += 1
        elif isinstance(content, MetricsPoint):
            row = {**table.metrics_row(content), "attempt": attempt}
            self.metrics.append({**place, **row, "values_json": table.storable(content.values_json) or None})
            group, batches = row["metric_group"], content.batches_completed
            _keep_newest(self.newest_by_key, (trial_id, group), {"trial_id": trial_id, **row})
            key = trial_id, group, attempt
            self.first_batches[key] = min(batches, self.first_batches.get(key, batches))
            self.count.metrics += 1
            self.count.reports[trial_id, group] += 1
        else:
            row = {**_progress_row(content), "attempt": attempt}
            _keep_newest(self.progress_by_trial_id, trial_id, {"trial_id": trial_id, "at": record.at, **row})
            self.count.progress += 1


def _keep_newest(rows: dict[T, Row], key: T, row: Row) -> None:
    """Replaces a row, unless it is of a newer attempt. A spool may be delivered late."""
    before = rows.get(key)
    if before is None or before["attempt"] <= row["attempt"]:
        rows[key] = row


def _is_as_new(new: Any, old: Any) -> sa.ColumnElement[bool]:
    return sa.func.coalesce(new.attempt, 0) >= sa.func.coalesce(old.attempt, 0)


def store_batches(engine: sa.Engine, batches: Sequence[IngestBatch], now: float) -> tuple[list[int], StoredCount]:
    """Returns the stored sequence number of each batch's spool after the commit, in the order of the batches."""
    with writing(engine) as connection:
        rows = _Rows(stored_by_spool_id=_find_cursors(connection, {batch.spool_id for batch in batches}))
        for batch in batches:
            rows.take(batch)
        _insert(connection, rows, now)
    return [rows.stored_by_spool_id[batch.spool_id] for batch in batches], rows.count


def _find_cursors(connection: sa.Connection, spool_ids: set[str]) -> dict[str, int]:
    cursors = table.ingest_cursors
    rows = connection.execute(
        sa.select(cursors.c.spool_id, cursors.c.stored_sequence).where(cursors.c.spool_id.in_(sorted(spool_ids)))
    )
    return {row.spool_id: row.stored_sequence for row in rows}


def _insert(connection: sa.Connection, rows: _Rows, now: float) -> None:
    if rows.logs:
        connection.execute(sa.insert(table.logs), rows.logs)
    if rows.metrics:
        connection.execute(sa.insert(table.metrics), rows.metrics)
    upsert(connection, table.newest_metrics, list(rows.newest_by_key.values()), _is_as_new)
    upsert(connection, table.progress, list(rows.progress_by_trial_id.values()), _is_as_new)
    note_attempts(connection, rows.first_batches)
    upsert(
        connection,
        table.ingest_cursors,
        [
            {"spool_id": spool_id, "stored_sequence": stored, "updated_at": now}
            for spool_id, stored in rows.stored_by_spool_id.items()
        ],
    )


def _log_row(line: LogLine) -> Row:
    return {
        "rank": line.rank,
        "agent_id": table.storable(line.agent_id),
        "stream": table.storable(line.stream),
        "text": table.storable(line.text),
        "level": None if line.level is None else table.LEVEL_NUMBERS[line.level],
    }


def _progress_row(point: ProgressPoint) -> Row:
    return {
        "batches_completed": point.batches_completed,
        "batches_total": point.batches_total,
        "samples_per_second": point.samples_per_second,
    }
