"""Ratios of paired samples and their intervals."""

from __future__ import annotations

import math

import pytest

from benchmarks.statistic import fastest, mean_of_runs, paired_ratio


def test_ratio_is_the_geometric_mean_within_its_interval() -> None:
    ratio = paired_ratio([2.0, 8.0], [1.0, 1.0])
    assert ratio.mean == pytest.approx(4.0)
    assert ratio.low * ratio.high == pytest.approx(16.0)
    # stdev of log 2 and log 8 is sqrt(2) log 2; over two pairs its error is log 2.
    assert ratio.high == pytest.approx(4.0 * 2**1.96)


def test_one_pair_tells_nothing_of_its_interval() -> None:
    ratio = paired_ratio([3.0], [2.0])
    assert ratio.mean == pytest.approx(1.5)
    assert (ratio.low, ratio.high) == (0.0, math.inf)
    assert not ratio.half_width <= 0.02


def test_interval_of_a_few_runs_is_student_s() -> None:
    ratio = mean_of_runs([2.0, 8.0])
    assert ratio.mean == pytest.approx(4.0)
    assert ratio.high == pytest.approx(4.0 * 2**12.706)
    assert mean_of_runs([2.0]).high == math.inf


def test_fastest_is_chosen_over_all_samples() -> None:
    assert fastest({"one": [1.0, 9.0], "other": [2.0, 2.0], "third": [2.5, 1.7]}) == "other"
