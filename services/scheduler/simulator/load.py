"""PURE: four synthetic loads with the statistics of public traces of training clusters.

Owns the figures of each load and how submissions are drawn from them. The generator of random numbers is an argument,
so the same seed gives the same trace. Called by the simulator's program, benchmarks/trace.py and tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gangline.errors import invalid
from services.scheduler.placement.request.snapshot import DEFAULT_PRIORITY
from services.scheduler.simulator.submission import OUTCOMES, TraceSubmission

DAY_SECONDS = 86_400.0
NUM_GROUPS = 16
# A lognormal run time may come out as good as 0; a submission must run for some time.
SHORTEST_SECONDS = 1.0
# A run that is cancelled or fails has done at least this share of its plan.
LEAST_RATIO_DONE = 0.05


class Dice(Protocol):
    """Names the methods that are used of random.Random."""

    def random(self) -> float: ...
    def choices(self, population: Sequence[int], weights: Sequence[float]) -> list[int]: ...
    def lognormvariate(self, mu: float, sigma: float) -> float: ...
    def gammavariate(self, alpha: float, beta: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Load:
    """Describes a load."""

    arrivals_per_slot_day: float  # submissions for each slot of the cluster and day
    log_mean: float  # mean of the logarithm of the run time in seconds, which is lognormal
    log_deviation: float  # standard deviation of that logarithm
    size_exponent: float  # a gang has 2^k slots in proportion to 2^(-size_exponent k), k = 0..largest_power
    largest_power: int
    outcomes: tuple[float, float, float]  # weights in the order of OUTCOMES
    arrival_cv: float = 1.0  # coefficient of variation of the times between two submissions; 1 for a Poisson process
    day_night_ratio: float = 1.0  # rate at noon over the rate at midnight

    def size_weights(self, slots: int) -> dict[int, float]:
        """Returns the weight of each gang size that the cluster can hold."""
        powers = range(min(self.largest_power, int(math.log2(slots))) + 1)
        return {2**power: 2.0 ** (-self.size_exponent * power) for power in powers}


LOADS: Mapping[str, Load] = {
    "helios": Load(1.35, 5.33, 2.64, 1.18, 11, (62, 22, 16), arrival_cv=1.6, day_night_ratio=2.0),
    "philly": Load(0.33, 6.77, 2.46, 1.58, 7, (60, 9, 31)),
    "llm-dev": Load(1.58, 4.80, 2.21, 0.99, 10, (50, 8, 43)),
    "llm-pretrain": Load(0.075, 4.82, 2.15, 0.55, 10, (54, 6, 40)),
}


def draw_load(
    load: Load,
    dice: Dice,
    slots: int,
    days: float,
    *,
    intensity: float = 1.0,
    priorities: Mapping[int, float] | None = None,
) -> list[TraceSubmission]:
    """Draws submissions in the order of submission, from second 0 on, which is midnight. slots: of the whole cluster.
    intensity: factor on the number of arrivals. priorities: with their weights; without them all have the default.

    A run that is cancelled or fails runs as long as the load says; its planned time is longer, by a uniformly drawn
    share.
    """
    sizes = load.size_weights(slots)
    ranks = priorities or {DEFAULT_PRIORITY: 1.0}
    groups = {number: 1 / number for number in range(1, NUM_GROUPS + 1)}
    submissions = []
    for number, at in enumerate(_draw_arrivals(load, dice, load.arrivals_per_slot_day * slots * intensity, days), 1):
        duration = max(SHORTEST_SECONDS, dice.lognormvariate(load.log_mean, load.log_deviation))
        outcome = OUTCOMES[_pick(dice, dict(enumerate(load.outcomes)))]
        done = 1.0 if outcome == "completed" else LEAST_RATIO_DONE + (1 - LEAST_RATIO_DONE) * dice.random()
        submissions.append(
            TraceSubmission(
                id=f"t{number}",
                submitted_at=round(at, 3),
                slots=_pick(dice, sizes),
                duration_seconds=round(duration, 3),
                planned_seconds=round(duration, 3) if done == 1.0 else round(duration / done + 0.001, 3),
                priority=_pick(dice, ranks),
                group=f"g{_pick(dice, groups)}",
                outcome=outcome,
            )
        )
    return submissions


def _draw_arrivals(load: Load, dice: Dice, per_day: float, days: float) -> list[float]:
    """Draws a renewal process of gamma-distributed gaps with mean 1, on a clock that runs faster by day."""
    arrivals: list[float] = []
    shape = load.arrival_cv**-2
    count, total = 0.0, per_day * days
    while True:
        count += dice.gammavariate(shape, 1 / shape)
        if count >= total:
            return arrivals
        arrivals.append(_instant(count / per_day, load.day_night_ratio))


def _instant(expected_days: float, day_night_ratio: float) -> float:
    """Returns the second by which so many days' worth of arrivals are expected. The rate is a sine with the period of a
    day, lowest at midnight; its integral is inverted by bisection."""
    swing = (day_night_ratio - 1) / (day_night_ratio + 1)
    low, high = float(math.floor(expected_days)), math.floor(expected_days) + 1.0
    for _ in range(40):
        middle = (low + high) / 2
        expected = middle - swing * math.sin(2 * math.pi * middle) / (2 * math.pi)
        low, high = (middle, high) if expected < expected_days else (low, middle)
    return low * DAY_SECONDS


def _pick(dice: Dice, weights: Mapping[int, float]) -> int:
    return dice.choices(tuple(weights), tuple(weights.values()))[0]


def parse_priorities(text: str) -> dict[int, float]:
    """Parses "42:8,20:1" into priorities and their weights. Raises GanglineError `simulation.priorities`."""
    weights: dict[int, float] = {}
    for part in text.split(","):
        priority, _, weight = part.partition(":")
        try:
            number, share = int(priority), float(weight or 1)
        except ValueError:
            number, share = 0, 0.0
        if not 1 <= number <= 99 or not 0 < share < math.inf:
            raise invalid(
                "simulation.priorities",
                f"--priorities {part!r}: must be a priority from 1 to 99 and a weight above 0, such as 42:8",
            )
        weights[number] = share
    return weights
