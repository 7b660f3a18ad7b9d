"""Long series in few points: the extremes of every part stay, whatever was reported."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.history.metric_block import (
    SPAN_REPORTS,
    Report,
    Sample,
    Span,
    build_blocks,
    count_values,
    draw,
    merge,
    pack,
    spans_of,
    unpack,
)


def _named(value: float | None) -> dict[str, float]:
    return {} if value is None else {"loss": value}


VALUES = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 1.0, -1.0])
REPORTS = st.lists(st.none() | VALUES, max_size=200).map(
    lambda values: [
        Report(7 * number + 3, 1e9 + number, 10 * number, 0, _named(value)) for number, value in enumerate(values)
    ]
)


@given(reports=REPORTS, num_reports=st.sampled_from([1, 3, SPAN_REPORTS]), max_points=st.integers(4, 60))
def test_a_drawn_series_has_its_ends_and_the_extremes_of_every_run(
    reports: list[Report], num_reports: int, max_points: int
) -> None:
    spans = spans_of(reports, "loss", num_reports)
    drawn = draw(spans, max_points)
    finite = [report for report in reports if math.isfinite(report.metrics.get("loss", math.nan))]
    samples = {report.row_id: _sample(report) for report in finite}
    assert len(drawn) <= max_points
    assert [sample.row_id for sample in drawn] == sorted({sample.row_id for sample in drawn})
    assert all(sample == samples[sample.row_id] for sample in drawn)
    if finite:
        assert drawn[0] == _sample(finite[0])
        assert drawn[-1] == _sample(finite[-1])
    runs = -(-len(spans) // max(1, (max_points - 2) // 2))
    if num_reports == 1 and len(spans) <= max_points:
        runs = 1
    for start in range(0, len(spans), max(1, runs)):
        values = _values_between(finite, spans[start : start + runs])
        if values:
            kept = {sample.value for sample in drawn}
            assert {min(values), max(values)} <= kept


def _values_between(finite: list[Report], spans: list[Span]) -> list[float]:
    """Returns the finite values from the first to the last sample of these spans, by their rows."""
    whole = merge(spans)
    num_values, num_nonfinite = count_values(whole)
    if num_values == num_nonfinite:
        return []
    first, last = whole[0], whole[4]
    return [report.metrics["loss"] for report in finite if first <= report.row_id <= last]


@given(reports=REPORTS)
def test_a_short_series_is_drawn_whole(reports: list[Report]) -> None:
    finite = [report for report in reports if math.isfinite(report.metrics.get("loss", math.nan))]
    assert draw(spans_of(reports, "loss", 1), 200) == [_sample(report) for report in finite]


@given(reports=REPORTS, cut=st.integers(0, 200))
def test_a_summary_counts_all_values_and_does_not_depend_on_how_it_is_divided(reports: list[Report], cut: int) -> None:
    whole = merge(spans_of(reports, "loss", 1))
    assert whole == merge([merge(spans_of(reports[:cut], "loss", 1)), merge(spans_of(reports[cut:], "loss", 5))])
    values = [report.metrics["loss"] for report in reports if report.metrics]
    assert count_values(whole) == (len(values), sum(not math.isfinite(value) for value in values))


@given(reports=REPORTS)
def test_stored_blocks_are_read_as_they_were_written(reports: list[Report]) -> None:
    blocks = build_blocks(reports)
    assert set(blocks) == {name for report in reports for name in report.metrics}
    for metric, block in blocks.items():
        assert unpack(pack(block.spans)) == block.spans
        assert unpack(pack([block.summary])) == [block.summary]
        assert block.summary == merge(spans_of(reports, metric, 1))


def _sample(report: Report) -> Sample:
    return Sample(report.row_id, report.at, report.batches_completed, report.metrics["loss"])
