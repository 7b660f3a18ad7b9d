"""How long a call is retried: each gateway first, then rounds with growing pauses, up to the limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gangline.protocol.retry_rule import LONGEST_PAUSE_SECONDS, Retry


def test_each_gateway_is_tried_before_the_first_pause() -> None:
    retry = Retry(3, started=0.0)
    assert [retry.fail(0.0, 10, is_answer=False) for _ in range(9)] == [0, 0, 0.1, 0, 0, 0.2, 0, 0, 0.4]


def test_limit_does_not_apply_before_each_gateway_was_tried() -> None:
    retry = Retry(2, started=0.0)
    assert retry.fail(60.0, 10, is_answer=False) == 0
    assert retry.fail(60.0, 10, is_answer=False) is None


def test_answer_about_the_cluster_is_not_asked_of_every_gateway() -> None:
    assert Retry(2, started=0.0).fail(12.0, 10, is_answer=True) is None
    assert Retry(2, started=0.0).fail(1.0, 10, is_answer=True) == 0


def test_outage_after_a_success_has_its_own_clock() -> None:
    retry = Retry(1, started=0.0)
    assert retry.fail(1.0, 10, is_answer=False) == 0.1
    retry.restart_clock(1000.0)
    assert retry.fail(1000.0, 10, is_answer=False) == 0.2
    retry.restart(2000.0)
    assert retry.fail(2000.0, 10, is_answer=False) == 0.1
    assert retry.seconds(2003.0) == 3.0


@given(
    num_gateways=st.integers(1, 5),
    limit=st.floats(0, 60),
    attempt_seconds=st.floats(0, 20),
)
def test_call_ends_and_every_gateway_had_its_turn(num_gateways: int, limit: float, attempt_seconds: float) -> None:
    retry, now, num_attempts = Retry(num_gateways, 0.0), 0.0, 0
    while True:
        now += attempt_seconds
        num_attempts += 1
        pause = retry.fail(now, limit, is_answer=False)
        if pause is None:
            break
        assert pause <= LONGEST_PAUSE_SECONDS
        now += pause
        assert num_attempts < 2000 * num_gateways
    assert num_attempts >= num_gateways
    assert now <= max(limit, num_gateways * attempt_seconds) + attempt_seconds + LONGEST_PAUSE_SECONDS
