"""How often ranks compare their parameters, by what a comparison costs, and which copies a fingerprint compares."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from gangline.pytorch.parallel.shared.copies import Copies
from gangline.pytorch.training.comparison import count_of, differ, fingerprints
from gangline.pytorch.training.drift import next_distance

COST_RATIO = 0.001
SECONDS = st.floats(1e-6, 1e3)


@given(SECONDS, SECONDS)
def test_checks_cost_a_thousandth_of_the_training_and_come_no_later_than_that_needs(cost: float, batch: float) -> None:
    distance = next_distance(cost, batch)
    assert distance >= 1
    assert cost <= COST_RATIO * distance * batch * (1 + 1e-9)
    assert distance == 1 or cost > COST_RATIO * (distance - 1) * batch * (1 - 1e-9)


def test_before_a_batch_has_been_timed_the_next_batch_is_checked() -> None:
    assert next_distance(5.0, 0.0) == 1


def _numbers(place: int, index: int, stage: torch.Tensor, tied: torch.Tensor) -> list[int]:
    """Returns those of one of three stages of one of two replicas. The outer stages have a weight in common."""
    across = Copies("replica", {"weight": stage}, place, 3)
    holds = place != 1
    shared = Copies("stage", {"tied": tied} if holds else {}, index if holds else None, 2)
    numbers = fingerprints([across, shared])
    assert len(numbers) == count_of([across, shared]) == 10
    return numbers


@pytest.mark.parametrize(
    ("changed", "is_tied"), [(None, False), *((rank, is_tied) for rank in range(6) for is_tied in (False, True))]
)
def test_a_fingerprint_compares_ranks_that_have_the_same(changed: int | None, is_tied: bool) -> None:
    by_rank = []
    for rank in range(6):
        index, place = divmod(rank, 3)
        stage, tied = torch.full((2, place + 1), float(place)), torch.tensor([1.0, -1.0])
        if rank == changed:
            # The sum stays the same.
            changing = tied if is_tied else stage
            changing.view(-1)[0] += 0.5
            changing.view(-1)[-1] -= 0.5
        by_rank.append(_numbers(place, index, stage, tied))
    maxima = [max(numbers) for numbers in zip(*by_rank, strict=True)]
    is_seen = changed is not None and (not is_tied or changed % 3 != 1)
    assert (differ(maxima[:6]), differ(maxima[6:])) == (is_seen and not is_tied, is_seen and is_tied)
