"""PURE: the cost of one exchange: a fixed time and a time for each byte.

Bytes are those of the tensor as it is sent; bytes that an all-reduce sends more than once are included in the rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkCost:
    """Cost of an exchange over a link."""

    alpha_seconds: float  # time of an empty exchange
    bytes_per_second: float  # above 0; infinite for a link whose time could not be measured

    def seconds(self, num_bytes: float) -> float:
        return self.alpha_seconds + num_bytes / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class LinkSample:
    """Holds one exchange, or the median of several of the same size."""

    num_bytes: int
    seconds: float


def fit_link(samples: Sequence[LinkSample]) -> LinkCost | None:
    """Returns the line with the least relative errors through the samples; None where they give no line: fewer than two
    sizes, or times that are not finite and above 0.

    Relative, as only the smallest sample determines alpha, and only the largest one the rate. A slope or an intercept
    below 0 is noise: the rate is then infinite, or alpha a thousandth of the fastest sample.
    """
    usable = [sample for sample in samples if math.isfinite(sample.seconds) and sample.seconds > 0]
    if len({sample.num_bytes for sample in usable}) < 2:
        return None
    weights = [1 / sample.seconds**2 for sample in usable]
    total = sum(weights)
    mean_bytes = sum(w * s.num_bytes for w, s in zip(weights, usable, strict=True)) / total
    mean_seconds = sum(w * s.seconds for w, s in zip(weights, usable, strict=True)) / total
    spread = sum(w * (s.num_bytes - mean_bytes) ** 2 for w, s in zip(weights, usable, strict=True))
    rise = sum(
        w * (s.num_bytes - mean_bytes) * (s.seconds - mean_seconds) for w, s in zip(weights, usable, strict=True)
    )
    slope = max(0.0, rise / spread)
    floor = min(sample.seconds for sample in usable) / 1000
    return LinkCost(max(floor, mean_seconds - slope * mean_bytes), 1 / slope if slope > 0 else math.inf)
