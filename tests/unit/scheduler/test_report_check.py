"""Reports of runners as the leader takes them: numbers that cannot be true are replaced."""

from __future__ import annotations

import math

import pytest
from prometheus_client import REGISTRY

from gangline.v1 import ingest_pb2, runner_pb2
from services.scheduler.agents.report_check import Screening

NOW = 1e9
# A validation after 5 batches with the loss 0.5 and the length 2.5, as runners of version 0.1.0 at first reported it.
EARLIER = bytes.fromhex("0803221c0805120f0a046c6f737311000000000000e03f190000000000000440")


def _num_replaced(kind: str) -> float:
    return REGISTRY.get_sample_value("gangline_scheduler_implausible_values_total", {"kind": kind}) or 0.0


def _validation(batches: int, units: float | None) -> runner_pb2.TrialReport:
    point = ingest_pb2.MetricsPoint(group="validation", batches_completed=batches, metrics={"loss": 0.5})
    return runner_pb2.TrialReport(sequence=3, metrics=point, units=units)


@pytest.mark.parametrize("units", [None, 2.5])
def test_a_validation_of_an_earlier_runner_is_one_of_today(units: float | None) -> None:
    earlier = runner_pb2.ValidationReport(batches_completed=5, metrics={"loss": 0.5}, units=units)
    report = runner_pb2.TrialReport(sequence=3, validation=earlier)
    assert Screening("/storage").report("7.1.1", report, NOW) == _validation(5, units)


def test_the_bytes_of_an_earlier_runner_are_read() -> None:
    report = runner_pb2.TrialReport.FromString(EARLIER)
    assert Screening("/storage").report("7.1.1", report, NOW) == _validation(5, 2.5)


@pytest.mark.parametrize(
    ("batches", "units", "expected"),
    [(-5, 2.5, _validation(0, 2.5)), (5, math.nan, _validation(5, 0.0)), (5, -1.0, _validation(5, 0.0))],
)
def test_numbers_of_a_validation_are_plausible(batches: int, units: float, expected: runner_pb2.TrialReport) -> None:
    before = _num_replaced("validation")
    given = _validation(batches, units)
    assert Screening("/storage").report("7.1.1", given, NOW) == expected
    assert given.metrics.batches_completed == batches, "the given report stays"
    assert _num_replaced("validation") == before + 1


def test_a_length_that_is_absent_stays_so() -> None:
    assert not Screening("/storage").report("7.1.1", _validation(5, None), NOW).HasField("units")
