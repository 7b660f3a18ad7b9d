"""Reads one metric of a trial with a bounded number of points.

The cost depends on the number of points, not on that of the reports: from the blocks of the series, and, where they are
too coarse, from their spans or from the reports. Reports that no block has yet are read one by one. Everything here
blocks; reader.py calls it in its threads.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from gangline.domain.history import MetricSeries, SeriesPoint
from services.gateway.history import table
from services.gateway.history.condense import find_cursor, read_reports
from services.gateway.history.metric_block import (
    BLOCK_REPORTS,
    SPAN_REPORTS,
    Report,
    Span,
    draw,
    merge,
    spans_of,
    unpack,
)

# Reports without a block that a reader still reads one by one; with more, blocks are stored first.
MAX_TAIL = 4 * BLOCK_REPORTS
# Reports that are read for a metric that few of them have.
MAX_RAW = 16 * BLOCK_REPORTS


def has_long_tail(connection: sa.Connection, trial_id: str, group: str) -> bool:
    """Returns whether blocks have to be stored before the series is read: the reports are from an earlier version, or
    from before a restart of the gateway."""
    rows = table.metrics
    after_id = find_cursor(connection, trial_id, group)
    tail = (
        sa.select(rows.c.id)
        .where(rows.c.trial_id == trial_id, rows.c.metric_group == group, rows.c.id > after_id)
        .limit(MAX_TAIL + 1)
        .subquery()
    )
    return (connection.scalar(sa.select(sa.func.count()).select_from(tail)) or 0) > MAX_TAIL


def read_series(connection: sa.Connection, trial_id: str, group: str, metric: str, max_points: int) -> MetricSeries:
    """Returns the series of a metric: from its blocks if they are enough, from its reports if these are few, and from
    the spans of its blocks otherwise. All reports count, also those of batches that a later attempt trained again."""
    after_id = find_cursor(connection, trial_id, group)
    blocks = _Blocks(connection, trial_id, group, metric)
    summaries = blocks.summaries()
    tail = read_reports(connection, trial_id, group, after_id, MAX_TAIL + BLOCK_REPORTS)
    num_values = merge([*summaries, *spans_of(tail, metric, BLOCK_REPORTS)]).num_values
    num_reports = len(summaries) * BLOCK_REPORTS + len(tail)
    if 2 * len(summaries) >= max_points:
        spans = [*summaries, *spans_of(tail, metric, BLOCK_REPORTS)]
    elif num_values <= max_points * SPAN_REPORTS / 2 and num_reports <= max(max_points * SPAN_REPORTS / 2, MAX_RAW):
        spans = spans_of([*blocks.reports(), *tail], metric, 1)
    else:
        spans = [*blocks.spans(), *spans_of(tail, metric, SPAN_REPORTS)]
    whole = merge(spans)
    points = [SeriesPoint(sample.batches_completed, sample.at, sample.value) for sample in draw(spans, max_points)]
    return MetricSeries(trial_id, group, metric, tuple(points), whole.num_values, whole.num_nonfinite)


class _Blocks:
    """Reads the blocks of one metric."""

    def __init__(self, connection: sa.Connection, trial_id: str, group: str, metric: str) -> None:
        self._connection = connection
        self._trial_id = trial_id
        self._group = group
        self._metric = metric

    def summaries(self) -> list[Span]:
        return unpack(b"".join(row.summary for row in self._rows(table.metric_blocks.c.summary)))

    def spans(self) -> list[Span]:
        return unpack(b"".join(row.spans for row in self._rows(table.metric_blocks.c.spans)))

    def reports(self) -> list[Report]:
        """Returns the reports of the blocks that have the metric."""
        return [
            report
            for row in self._rows(table.metric_blocks.c.first_id)
            for report in read_reports(self._connection, self._trial_id, self._group, row.first_id - 1, BLOCK_REPORTS)
        ]

    def _rows(self, column: sa.Column[Any]) -> list[sa.Row[Any]]:
        blocks = table.metric_blocks
        return list(
            self._connection.execute(
                sa.select(column)
                .where(
                    blocks.c.trial_id == self._trial_id,
                    blocks.c.metric_group == self._group,
                    blocks.c.metric == self._metric,
                )
                .order_by(blocks.c.last_id)
            )
        )
