"""PURE: divides a chain of units into consecutive parts whose largest cost is as small as possible.

The division is exact, not greedy. Among the divisions with the smallest largest cost it takes one with the smallest sum
of squares, and of several such divisions always the same one. Called by the strategy `pipeline` with counts of
parameters; a plan may call it with measured times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise


def partition(costs: Sequence[float], parts: int) -> list[int]:
    """Returns the number of units of each part, all at least 1. Takes O(units^2 x parts) steps, once for the same
    arguments. costs: of the units, 0 or more; there are at least as many as parts."""
    assert 1 <= parts <= len(costs), (parts, len(costs))
    return list(_partition(tuple(costs), parts))


# A search for the number of slots that would do divides the same units into each number of parts again and again.
@lru_cache(maxsize=1024)
def _partition(costs: tuple[float, ...], parts: int) -> tuple[int, ...]:
    sums = [0.0, *accumulate(costs)]
    largest, _ = _best(sums, parts, lambda cost: cost, max)
    _, counts = _best(sums, parts, lambda cost: cost * cost if cost <= largest * (1 + 1e-12) else math.inf, _add)
    return tuple(counts)


def imbalance_ratio(costs: Sequence[float], counts: Sequence[int]) -> float:
    """Returns the largest part's cost divided by the mean of all parts; 1 for parts of equal cost."""
    ends = list(accumulate(counts))
    totals = [sum(costs[end - count : end]) for end, count in zip(ends, counts, strict=True)]
    mean = sum(totals) / len(totals)
    return max(totals) / mean if mean else 1.0


def _add(left: float, right: float) -> float:
    return left + right


def _best(
    sums: Sequence[float], parts: int, price: Callable[[float], float], join: Callable[[float, float], float]
) -> tuple[float, list[int]]:
    """Returns the smallest joined price of all parts, and their numbers of units. sums: of the costs before each
    unit."""
    units = len(sums) - 1
    # best[end]: the smallest joined price of the parts so far, which have the units before `end`.
    best = [math.inf] * (units + 1)
    best[0] = 0.0
    starts: list[list[int]] = []
    for part in range(1, parts + 1):
        joined, chosen = [math.inf] * (units + 1), [0] * (units + 1)
        for end in range(part, units - parts + part + 1):
            # A part that begins earlier costs more, and joined prices are no less than that of the last part.
            for start in range(end - 1, part - 2, -1):
                own = price(sums[end] - sums[start])
                if own > joined[end]:
                    break
                total = join(best[start], own)
                if total <= joined[end]:
                    joined[end], chosen[end] = total, start
        starts.append(chosen)
        best = joined
    ends = [units]
    for chosen in reversed(starts):
        ends.append(chosen[ends[-1]])
    ends.reverse()
    return best[units], [end - start for start, end in pairwise(ends)]
