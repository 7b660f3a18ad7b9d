"""Reads one metric of a trial with a bounded number of points.

The cost depends on the number of points, not on that of the reports: from the blocks of the series, and, where they are
too coarse, from their spans or from the reports. So are blocks in which reports of an older attempt are replaced
(`attempt.py`). Reports that no block has yet are read one by one. Everything here blocks; reader.py calls it in its
threads.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any

import sqlalchemy as sa

from gangline.domain.history import MetricSeries, SeriesPoint
from services.gateway.history import table
from services.gateway.history.attempt import EVERY_BATCH, AttemptExtent, BatchRange, ReportSelection, read_selection
from services.gateway.history.condense import find_cursor, read_reports
from services.gateway.history.metric_block import (
    BLOCK_REPORTS,
    SPAN_REPORTS,
    Report,
    Span,
    count_values,
    draw,
    merge,
    spans_of,
    unpack,
)
from services.gateway.mirror.ingest_record import Scope

# Reports without a block that a reader still reads one by one; with more, blocks are stored first.
MAX_TAIL = 4 * BLOCK_REPORTS
# Reports that are read for a metric that few of them have.
MAX_RAW = 16 * BLOCK_REPORTS
_SPANS_OF_BLOCK = BLOCK_REPORTS // SPAN_REPORTS


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


def read_series(
    connection: sa.Connection, scope: Scope, metric: str, max_points: int, *, batch_range: BatchRange = EVERY_BATCH
) -> MetricSeries | None:
    """Returns the series of a metric of the scope's trial and group: from its blocks if they are enough, from its
    reports if these are few, and from the spans of its blocks otherwise. None where blocks have to be stored first
    (`has_long_tail`). batch_range: as in `read_selection`."""
    trial_id, group = scope.trial_id, scope.group
    after_id = find_cursor(connection, trial_id, group)
    reports = read_reports(connection, trial_id, group, after_id, MAX_TAIL + 1)
    if len(reports) > MAX_TAIL:
        return None
    selection = read_selection(connection, trial_id, group, scope.attempt, batch_range)
    blocks = _Blocks(connection, trial_id, group, metric, selection)
    summaries = blocks.summaries()
    tail = _selected(reports, selection)
    tail_spans = spans_of(tail, metric, SPAN_REPORTS)
    num_values, num_nonfinite = count_values(merge([*summaries, *tail_spans]))
    num_reports = len(summaries) * BLOCK_REPORTS + len(tail)
    if 2 * len(summaries) >= max_points:
        parts = range(0, len(tail_spans), _SPANS_OF_BLOCK)
        spans = [*summaries, *(merge(tail_spans[start : start + _SPANS_OF_BLOCK]) for start in parts)]
    elif num_values <= max_points * SPAN_REPORTS / 2 and num_reports <= max(max_points * SPAN_REPORTS / 2, MAX_RAW):
        spans = spans_of([*blocks.reports(), *tail], metric, 1)
    else:
        spans = [*blocks.spans(), *tail_spans]
    points = [SeriesPoint(batches, at, value) for _, at, batches, value in draw(spans, max_points)]
    return MetricSeries(trial_id, group, metric, tuple(points), num_values, num_nonfinite)


def read_metric_names(connection: sa.Connection, trial_id: str) -> set[tuple[str, str]]:
    """Returns each metric that the trial has reported, with its group."""
    blocks, newest = table.metric_blocks, table.newest_metrics
    rows = connection.execute(
        sa.select(blocks.c.metric_group, blocks.c.metric).where(blocks.c.trial_id == trial_id).distinct()
    )
    names = {(row.metric_group, row.metric) for row in rows}
    groups = connection.scalars(sa.select(newest.c.metric_group).where(newest.c.trial_id == trial_id)).all()
    for group in groups:
        # Reports that no block has yet.
        found: set[str] = set()
        after_id = find_cursor(connection, trial_id, group)
        for report in read_reports(connection, trial_id, group, after_id, MAX_TAIL + BLOCK_REPORTS):
            found.update(report.metrics)
        names.update((group, metric) for metric in found)
    return names


def _selected(reports: list[Report], selection: ReportSelection) -> list[Report]:
    if selection.is_whole:
        return reports
    return [report for report in reports if selection.has(report.attempt, report.batches_completed)]


class _Blocks:
    """Reads the blocks of one metric. Blocks of which only some reports are selected are read by their reports: an
    attempt has one of them at most, unless it reports batches out of order."""

    def __init__(
        self, connection: sa.Connection, trial_id: str, group: str, metric: str, selection: ReportSelection
    ) -> None:
        self._connection = connection
        self._trial_id = trial_id
        self._group = group
        self._metric = metric
        self._selection = selection
        # The reports of blocks of which not all are selected, by the first id.
        self._read: dict[int, list[Report]] = {}

    def summaries(self) -> list[Span]:
        return self._spans_of(table.metric_blocks.c.summary, BLOCK_REPORTS)

    def spans(self) -> list[Span]:
        return self._spans_of(table.metric_blocks.c.spans, SPAN_REPORTS)

    def reports(self) -> list[Report]:
        """Returns the selected reports of the blocks that have the metric."""
        return [report for row, _ in self._rows(table.metric_blocks.c.first_id) for report in self._reports_of(row)]

    def _spans_of(self, column: sa.Column[Any], num_reports: int) -> list[Span]:
        spans: list[Span] = []
        for is_whole, group in groupby(self._rows(column), key=itemgetter(1)):
            rows = [row for row, _ in group]
            if is_whole:
                spans += unpack(b"".join(row[0] for row in rows))
            else:
                spans += (span for row in rows for span in spans_of(self._reports_of(row), self._metric, num_reports))
        return spans

    def _reports_of(self, row: sa.Row[Any]) -> list[Report]:
        if row.first_id not in self._read:
            reports = read_reports(self._connection, self._trial_id, self._group, row.first_id - 1, BLOCK_REPORTS)
            self._read[row.first_id] = _selected(reports, self._selection)
        return self._read[row.first_id]

    def _rows(self, column: sa.Column[Any]) -> list[tuple[sa.Row[Any], bool]]:
        """Returns the blocks that have selected reports, the column first, and whether all reports of each are
        selected."""
        blocks = table.metric_blocks
        extent = [] if self._selection.is_whole else [blocks.c[name] for name in _EXTENT]
        rows = self._connection.execute(
            sa.select(column, blocks.c.first_id, *extent)
            .where(
                blocks.c.trial_id == self._trial_id,
                blocks.c.metric_group == self._group,
                blocks.c.metric == self._metric,
            )
            .order_by(blocks.c.last_id)
        )
        if not extent:
            return [(row, True) for row in rows]
        judged = ((row, self._selection.has_all(_extent_of(row))) for row in rows)
        return [(row, has_all or False) for row, has_all in judged if has_all is not False]


_EXTENT = ("least_attempt", "greatest_attempt", "least_batches", "greatest_batches")


def _extent_of(row: sa.Row[Any]) -> AttemptExtent:
    return AttemptExtent(row.least_attempt or 0, row.greatest_attempt or 0, row.least_batches, row.greatest_batches)
