"""Work of several processes that is due at the same times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.timer_grid import seconds_until_due

PERIODS = st.sampled_from([0.02, 0.5, 1.0, 1.6, 3.0, 12.0])
CLOCKS = st.floats(0.0, 1e8)


@pytest.mark.parametrize(
    ("period_seconds", "now", "seconds"),
    [(1.0, 7.25, 0.75), (1.0, 7.0, 1.0), (3.0, 7.0, 2.0), (1.6, 7.0, 1.0), (0.5, 7.25, 0.25)],
)
def test_work_is_due_at_multiples_of_its_period(period_seconds: float, now: float, seconds: float) -> None:
    assert seconds_until_due(period_seconds, now) == pytest.approx(seconds)


def test_timer_that_ends_early_is_not_started_again_for_the_rest() -> None:
    assert seconds_until_due(3.0, 8.999) == pytest.approx(3.001)
    assert seconds_until_due(1.0, 6.9999) == pytest.approx(1.0001)


@given(PERIODS, CLOCKS)
def test_no_wait_exceeds_the_period_by_more_than_its_hundredth(period_seconds: float, now: float) -> None:
    assert 0 < seconds_until_due(period_seconds, now) <= 1.011 * period_seconds


@given(PERIODS, CLOCKS, st.floats(0.0, 0.98))
def test_processes_that_started_at_different_times_are_due_together(
    period_seconds: float, began: float, share: float
) -> None:
    due_at = began + seconds_until_due(period_seconds, began)
    other = due_at - period_seconds * (1 - share)
    assert other + seconds_until_due(period_seconds, other) == pytest.approx(due_at, abs=0.02 * period_seconds)
