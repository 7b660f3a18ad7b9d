"""How often ranks compare their parameters, by what a comparison costs."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

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
