"""PURE: summaries of runs of reports, from which a long series of a metric is drawn with few points.

A span summarises consecutive values of one metric of a trial, in the order in which they were stored: the first, the
last, the least and the greatest finite one. Spans that follow one another merge into a span. A block holds the spans of
BLOCK_REPORTS consecutive reports: a summary of all of them, and one span for every SPAN_REPORTS of them. `condense.py`
stores blocks, and `series.py` reads them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gangline.domain.history import StoredMetrics

# Reports of one trial and group in a block, and in each of its spans.
BLOCK_REPORTS = 1024
SPAN_REPORTS = 16

# Four samples and two counts of a span. Row ids and batches are exact in a double up to 2^53.
_SPAN = struct.Struct("<18d")


@dataclass(frozen=True, slots=True)
class Sample:
    """Holds one finite value."""

    row_id: int  # id of the report's row
    at: float  # seconds since 1970
    batches_completed: int
    value: float


@dataclass(frozen=True, slots=True)
class Span:
    """Summarises consecutive values.

    The samples are None where no value is finite. The first of equal values counts.
    """

    first: Sample | None
    last: Sample | None
    least: Sample | None
    greatest: Sample | None
    num_values: int  # number of values, with those that are not finite
    num_nonfinite: int


EMPTY = Span(None, None, None, None, 0, 0)


@dataclass(frozen=True, slots=True)
class Block:
    """Holds the summary of a metric in consecutive reports, and its spans without the empty ones."""

    summary: Span
    spans: tuple[Span, ...]


def span_of(report: StoredMetrics, metric: str) -> Span:
    """Returns the span of a single report; an empty one where the report lacks the metric."""
    value = report.point.metrics.get(metric)
    if value is None:
        return EMPTY
    if not math.isfinite(value):
        return Span(None, None, None, None, 1, 1)
    sample = Sample(report.id, report.at, report.point.batches_completed, value)
    return Span(sample, sample, sample, sample, 1, 0)


def merge(spans: Iterable[Span]) -> Span:
    """Returns the summary of spans that follow one another."""
    first = last = least = greatest = None
    num_values = num_nonfinite = 0
    for span in spans:
        num_values += span.num_values
        num_nonfinite += span.num_nonfinite
        if span.first is None or span.least is None or span.greatest is None:
            continue
        first = first or span.first
        last = span.last
        if least is None or span.least.value < least.value:
            least = span.least
        if greatest is None or span.greatest.value > greatest.value:
            greatest = span.greatest
    return Span(first, last, least, greatest, num_values, num_nonfinite)


def spans_of(reports: Sequence[StoredMetrics], metric: str, num_reports: int) -> list[Span]:
    """Returns one span for every `num_reports` reports, without the empty ones."""
    spans = (
        merge(span_of(report, metric) for report in reports[start : start + num_reports])
        for start in range(0, len(reports), num_reports)
    )
    return [span for span in spans if span.num_values]


def build_blocks(reports: Sequence[StoredMetrics]) -> dict[str, Block]:
    """Returns the block of each metric in these reports."""
    blocks: dict[str, Block] = {}
    for metric in sorted({name for report in reports for name in report.point.metrics}):
        spans = spans_of(reports, metric, SPAN_REPORTS)
        blocks[metric] = Block(merge(spans), tuple(spans))
    return blocks


def draw(spans: Sequence[Span], max_points: int) -> list[Sample]:
    """Returns at most max_points samples of the series, oldest first: the first, the last, and the least and the
    greatest of each of some equally long runs of spans. max_points: at least 4."""
    whole = merge(spans)
    num_runs = (max_points - 2) // 2
    num_spans = max(1, math.ceil(len(spans) / num_runs))
    if len(spans) <= max_points and all(span.num_values == 1 for span in spans):
        num_spans = 1
    runs = [merge(spans[start : start + num_spans]) for start in range(0, len(spans), num_spans)]
    samples = [sample for run in runs for sample in (run.least, run.greatest)]
    by_row_id = {sample.row_id: sample for sample in (whole.first, whole.last, *samples) if sample is not None}
    return [by_row_id[row_id] for row_id in sorted(by_row_id)]


def pack(spans: Iterable[Span]) -> bytes:
    return b"".join(_SPAN.pack(*_numbers(span)) for span in spans)


def unpack(packed: bytes) -> list[Span]:
    """Raises struct.error for bytes that `pack` has not made."""
    return [_read(numbers) for numbers in _SPAN.iter_unpack(packed)]


def _numbers(span: Span) -> list[float]:
    numbers: list[float] = []
    for sample in (span.first, span.last, span.least, span.greatest):
        numbers += (sample.row_id, sample.at, sample.batches_completed, sample.value) if sample else (0, 0, 0, 0)
    return [*numbers, span.num_values, span.num_nonfinite]


def _read(numbers: Sequence[float]) -> Span:
    num_values, num_nonfinite = int(numbers[16]), int(numbers[17])
    if num_values == num_nonfinite:
        return Span(None, None, None, None, num_values, num_nonfinite)
    first, last, least, greatest = (
        Sample(int(numbers[start]), numbers[start + 1], int(numbers[start + 2]), numbers[start + 3])
        for start in range(0, 16, 4)
    )
    return Span(first, last, least, greatest, num_values, num_nonfinite)
