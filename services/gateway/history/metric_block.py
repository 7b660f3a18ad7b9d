"""PURE: summaries of runs of reports, from which a long series of a metric is drawn with few points.

A span summarises consecutive values of one metric of a trial, in the order in which they were stored: the first, the
last, the least and the greatest finite one. Spans that follow one another merge into a span. A block holds the spans of
BLOCK_REPORTS consecutive reports: a summary of all of them, and one span for every SPAN_REPORTS of them. `condense.py`
stores blocks, and `series.py` reads them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

# Reports of one trial and group in a block, and in each of its spans.
BLOCK_REPORTS = 1024
SPAN_REPORTS = 16

# The first, last, least and greatest sample, each with the four numbers of Sample, then the number of values and that
# of those that are not finite. Plain tuples, because a chart of many trials reads tens of thousands of spans. The
# samples are zeros where no value is finite. Of equal values the first is the least and the greatest.
Span = tuple[float, ...]
_SPAN = struct.Struct("<18d")
_SAMPLES = _FIRST, _LAST, _LEAST, _GREATEST = slice(0, 4), slice(4, 8), slice(8, 12), slice(12, 16)
_LEAST_VALUE, _GREATEST_VALUE = itemgetter(11), itemgetter(15)
_NUM_VALUES, _NUM_NONFINITE = 16, 17
_NO_SAMPLES: Span = (0.0,) * _NUM_VALUES


class Report(NamedTuple):
    """Holds a stored report of a trial and group, without values that are no numbers."""

    row_id: int
    at: float  # seconds since 1970
    batches_completed: int
    attempt: int  # 0 where an earlier version stored it
    metrics: dict[str, float]


class Sample(NamedTuple):
    """Holds one finite value. Row ids and batches are exact in a double up to 2^53."""

    row_id: int  # id of the report's row
    at: float  # seconds since 1970
    batches_completed: int
    value: float


class Block(NamedTuple):
    """Holds the summary of a metric in consecutive reports, and its spans without the empty ones."""

    summary: Span
    spans: list[Span]


def count_values(span: Span) -> tuple[int, int]:
    """Returns the number of values, and of those that are not finite."""
    return int(span[_NUM_VALUES]), int(span[_NUM_NONFINITE])


def merge(spans: Iterable[Span]) -> Span:
    """Returns the summary of spans that follow one another."""
    all_spans = list(spans)
    counts = sum(span[_NUM_VALUES] for span in all_spans), sum(span[_NUM_NONFINITE] for span in all_spans)
    finite = [span for span in all_spans if _is_finite(span)]
    if not finite:
        return (*_NO_SAMPLES, *counts)
    least, greatest = min(finite, key=_LEAST_VALUE), max(finite, key=_GREATEST_VALUE)
    return (*finite[0][_FIRST], *finite[-1][_LAST], *least[_LEAST], *greatest[_GREATEST], *counts)


def spans_of(reports: Sequence[Report], metric: str, num_reports: int) -> list[Span]:
    """Returns one span for every `num_reports` reports, without the empty ones."""
    spans: list[Span] = []
    for start in range(0, len(reports), num_reports):
        singles = list(_singles(reports[start : start + num_reports], metric))
        if len(singles) == 1:
            spans += singles
        elif singles:
            spans.append(merge(singles))
    return spans


def build_blocks(reports: Sequence[Report]) -> dict[str, Block]:
    """Returns the block of each metric in these reports."""
    blocks: dict[str, Block] = {}
    for metric in sorted({name for report in reports for name in report.metrics}):
        spans = spans_of(reports, metric, SPAN_REPORTS)
        blocks[metric] = Block(merge(spans), spans)
    return blocks


def draw(spans: Sequence[Span], max_points: int) -> list[Sample]:
    """Returns at most max_points samples of the series, oldest first: the first, the last, and the least and the
    greatest of each of some equally long runs of spans. max_points: at least 4."""
    num_runs = (max_points - 2) // 2
    num_spans = max(1, math.ceil(len(spans) / num_runs))
    if len(spans) <= max_points and all(span[_NUM_VALUES] == 1 for span in spans):
        num_spans = 1
    # By row.
    drawn: dict[float, Span] = {}
    last: Span | None = None
    for start in range(0, len(spans), num_spans):
        run = [span for span in spans[start : start + num_spans] if _is_finite(span)]
        if not run:
            continue
        least, greatest = min(run, key=_LEAST_VALUE)[_LEAST], max(run, key=_GREATEST_VALUE)[_GREATEST]
        if last is None:
            drawn[run[0][0]] = run[0][_FIRST]
        drawn[least[0]], drawn[greatest[0]] = least, greatest
        last = run[-1][_LAST]
    if last is not None:
        drawn[last[0]] = last
    return [_sample(numbers) for _, numbers in sorted(drawn.items())]


def pack(spans: Iterable[Span]) -> bytes:
    return b"".join(_SPAN.pack(*span) for span in spans)


def unpack(packed: bytes) -> list[Span]:
    """Raises struct.error for bytes that `pack` has not made."""
    return list(_SPAN.iter_unpack(packed))


def _is_finite(span: Span) -> bool:
    """Returns whether a value of the span is finite, so that it has samples."""
    return span[_NUM_VALUES] > span[_NUM_NONFINITE]


def _singles(reports: Iterable[Report], metric: str) -> Iterator[Span]:
    """Yields the span of each report that has the metric."""
    for row_id, at, batches, _, metrics in reports:
        value = metrics.get(metric)
        if value is None:
            continue
        if math.isfinite(value):
            yield (row_id, at, batches, value) * len(_SAMPLES) + (1, 0)
        else:
            yield (*_NO_SAMPLES, 1, 1)


def _sample(numbers: Span) -> Sample:
    row_id, at, batches, value = numbers
    return Sample(int(row_id), at, int(batches), value)
