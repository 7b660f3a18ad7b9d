"""PURE: medians, spreads and intervals of measured samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    """Summarises one set of samples, in the samples' unit."""

    count: int
    minimum: float
    p50: float
    p95: float
    maximum: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """Holds a geometric mean of paired ratios with its 95 % interval."""

    mean: float
    low: float
    high: float
    pairs: int

    @property
    def half_width(self) -> float:
        """Returns half the width of the interval, relative to the mean."""
        return (self.high - self.low) / 2 / self.mean

    def __str__(self) -> str:
        return f"{self.mean:.4f} (95 %: {self.low:.4f} to {self.high:.4f}, ± {self.half_width:.1%})"


def summarise(samples: Sequence[float]) -> Summary:
    """Summarises samples. p95 is the nearest rank: a value that was measured."""
    ordered = sorted(samples)
    return Summary(
        count=len(ordered),
        minimum=ordered[0],
        p50=statistics.median(ordered),
        p95=ordered[math.ceil(0.95 * len(ordered)) - 1],
        maximum=ordered[-1],
    )


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Returns ours over theirs, pair by pair, on the log scale. The interval is normal, so it needs twenty pairs or
    more. One pair alone has no spread: its interval is infinite."""
    return _geometric_mean([math.log(a / b) for a, b in zip(ours, theirs, strict=True)], 1.96)


# Student's t for 97.5 %, by degrees of freedom; beyond these the value of the normal distribution is close enough.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def mean_of_runs(ratios: Sequence[float]) -> Ratio:
    """Returns the geometric mean of one ratio from each of a few runs; the interval is Student's."""
    freedom = len(ratios) - 1
    quantile = _STUDENT[freedom - 1] if 0 < freedom <= len(_STUDENT) else 1.96
    return _geometric_mean([math.log(ratio) for ratio in ratios], quantile)


def _geometric_mean(logs: Sequence[float], quantile: float) -> Ratio:
    mean = statistics.fmean(logs)
    error = quantile * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return Ratio(math.exp(mean), math.exp(mean - error), math.exp(mean + error), len(logs))


def fastest(samples: Mapping[str, Sequence[float]]) -> str:
    """Returns the name of the samples with the smallest geometric mean; all samples are above 0."""
    return min(samples, key=lambda name: statistics.fmean(map(math.log, samples[name])))
