"""The division of a chain into parts is the best of all divisions."""

from __future__ import annotations

from itertools import accumulate, combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.pytorch.parallel.staged.partition import imbalance_ratio, partition


def _totals(costs: list[int], counts: list[int]) -> list[int]:
    ends = list(accumulate(counts))
    return [sum(costs[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def _all_divisions(units: int, parts: int) -> list[list[int]]:
    cuts = ([0, *inner, units] for inner in combinations(range(1, units), parts - 1))
    return [[end - start for start, end in pairwise(cut)] for cut in cuts]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(1, 8))
def test_no_other_division_has_a_smaller_largest_part(costs: list[int], parts: int) -> None:
    parts = min(parts, len(costs))
    counts = partition(costs, parts)
    assert (sum(counts), len(counts), min(counts) >= 1) == (len(costs), parts, True)
    prices = [
        (max(totals), sum(total * total for total in totals))
        for totals in (_totals(costs, division) for division in _all_divisions(len(costs), parts))
    ]
    own = _totals(costs, counts)
    assert (max(own), sum(total * total for total in own)) == min(prices)


@pytest.mark.parametrize(
    ("costs", "parts", "counts", "ratio"),
    [
        # A transformer of four blocks, one of eight, and a perceptron, with counts of parameters.
        ([2560, 12704, 12704, 12704, 12704, 2176], 4, [2, 1, 1, 2], 1.10),
        ([2560, *[12704] * 8, 2176], 4, [3, 2, 2, 3], 1.06),
        ([20200, 40200, 40200, 2010], 3, [1, 1, 2], 1.24),
    ],
)
def test_known_models(costs: list[int], parts: int, counts: list[int], ratio: float) -> None:
    assert partition(costs, parts) == counts
    assert imbalance_ratio(costs, counts) <= ratio
