"""The synthetic loads have the statistics that they claim, for fixed seeds."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise
from statistics import NormalDist, fmean, pstdev, quantiles

import pytest

from gangline.errors import GanglineError
from services.scheduler.simulator.load import DAY_SECONDS, LOADS, draw_load, parse_priorities
from services.scheduler.simulator.submission import OUTCOMES, TraceSubmission

SLOTS = 512


def _drawn(name: str, days: float, seed: int = 7, intensity: float = 1.0) -> list[TraceSubmission]:
    return draw_load(LOADS[name], random.Random(seed), SLOTS, days, intensity=intensity)


@pytest.mark.parametrize("name", LOADS)
def test_run_times_sizes_and_outcomes(name: str) -> None:
    load = LOADS[name]
    submissions = _drawn(name, 20_000 / (load.arrivals_per_slot_day * SLOTS))
    assert len(submissions) == pytest.approx(20_000, rel=0.05)
    # Nothing runs for less than a second, so the middle of the run times is looked at.
    low, middle, high = (
        quantiles([math.log(submission.duration_seconds) for submission in submissions], n=6)[n] for n in (0, 2, 4)
    )
    assert middle == pytest.approx(load.log_mean, abs=0.1)
    assert (high - low) / 2 == pytest.approx(load.log_deviation * NormalDist().inv_cdf(5 / 6), abs=0.1)
    outcomes = Counter(submission.outcome for submission in submissions)
    for outcome, weight in zip(OUTCOMES, load.outcomes, strict=True):
        assert outcomes[outcome] / len(submissions) == pytest.approx(weight / sum(load.outcomes), abs=0.015)
    sizes = Counter(submission.slots for submission in submissions)
    for small, large in pairwise((1, 2, 4, 8)):
        assert sizes[large] / sizes[small] == pytest.approx(2**-load.size_exponent, rel=0.15)
    assert max(sizes) == min(2**load.largest_power, SLOTS)


def test_arrivals_of_helios_are_bursty_and_swing_with_the_day() -> None:
    submissions = _drawn("helios", 60)
    assert len(submissions) == pytest.approx(1.35 * SLOTS * 60, rel=0.03)
    hours = Counter(int(submission.submitted_at % DAY_SECONDS // 3600) for submission in submissions)
    by_day, by_night = (sum(hours[hour % 24] for hour in range(start, start + 4)) for start in (10, 22))
    assert by_day / by_night == pytest.approx(1.93, abs=0.15)
    noon = [
        submission.submitted_at for submission in submissions if 11 <= submission.submitted_at % DAY_SECONDS / 3600 < 13
    ]
    gaps = [later - earlier for earlier, later in pairwise(noon) if later - earlier < 3600]
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1.6, abs=0.15)


def test_arrivals_without_a_coefficient_are_chance_alone() -> None:
    times = [submission.submitted_at for submission in _drawn("philly", 60)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1.0, abs=0.05)


def test_the_seed_decides() -> None:
    assert _drawn("helios", 1) == _drawn("helios", 1)
    assert _drawn("helios", 1) != _drawn("helios", 1, seed=8)


def test_intensity_is_a_factor_of_arrivals() -> None:
    assert len(_drawn("llm-dev", 5, intensity=3)) == pytest.approx(3 * 5 * 1.58 * SLOTS, rel=0.05)


def test_a_small_cluster_gets_only_gangs_that_it_holds() -> None:
    submissions = draw_load(LOADS["llm-pretrain"], random.Random(1), 12, 400)
    assert {submission.slots for submission in submissions} == {1, 2, 4, 8}


def test_priorities_are_drawn_by_weight() -> None:
    weights = parse_priorities("42:8,20:1,60")
    assert weights == {42: 8.0, 20: 1.0, 60: 1.0}
    submissions = draw_load(LOADS["llm-dev"], random.Random(1), SLOTS, 3, priorities=weights)
    counts = Counter(submission.priority for submission in submissions)
    assert counts[42] / len(submissions) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("text", ["", "0:1", "100:1", "42:-1", "42:0", "42:nan", "42:inf", "high", "42:8,,20"])
def test_priorities_that_are_none(text: str) -> None:
    with pytest.raises(GanglineError, match="must be a priority from 1 to 99 and a weight above 0"):
        parse_priorities(text)
