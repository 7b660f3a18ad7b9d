"""When each living rank is killed."""

from __future__ import annotations

from services.trial_runner.gang.outcome import FailureRecord, RankEnd
from services.trial_runner.ranks.kill_deadline import (
    LAST_WORDS_SECONDS,
    SETTLE_SECONDS,
    TEARDOWN_SECONDS,
    Orders,
    RankView,
    plan_kills,
)

GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer"


def alive(rank: int, message: str = "", failed_at: float = 0.0, finished_at: float = 0.0) -> RankView:
    failure = FailureRecord(None, message, rank, failed_at=failed_at) if message else None
    end = RankEnd(rank, failure=failure, is_finished=bool(finished_at))
    return RankView(end, True, finished_at, failed_at)


def test_nobody_is_killed_while_all_is_well() -> None:
    assert plan_kills([alive(0), alive(1)], Orders()) == {}
    assert plan_kills([alive(0), alive(1, finished_at=5.0)], Orders()) == {}


def test_a_failing_rank_has_time_for_its_last_words_and_the_others_have_none() -> None:
    assert plan_kills([alive(0), alive(1, "ValueError: x", 10.0)], Orders()) == {0: 10.0, 1: 10.0 + LAST_WORDS_SECONDS}


def test_a_consequence_gives_the_cause_a_moment() -> None:
    kills = plan_kills([alive(0), alive(1, GLOO, 10.0)], Orders())
    assert kills[0] == 10.0 + SETTLE_SECONDS
    assert max(kills.values()) < 11


def test_a_rank_that_died_from_a_signal_takes_the_others_with_it_at_once() -> None:
    dead = RankView(RankEnd(1, signal=11, ended_at=10.0), False)
    assert plan_kills([alive(0), dead], Orders()) == {0: 10.0}


def test_a_rank_that_left_without_a_word_is_waited_for_as_a_consequence() -> None:
    dead = RankView(RankEnd(1, exit_code=1, ended_at=10.0), False)
    assert plan_kills([alive(0), dead], Orders()) == {0: 10.0 + SETTLE_SECONDS}


def test_a_rank_that_ended_well_leaves_the_others_alone() -> None:
    assert plan_kills([alive(0), RankView(RankEnd(1, exit_code=0, ended_at=10.0), False)], Orders()) == {}


def test_teardown_is_bounded_from_the_last_that_finished() -> None:
    kills = plan_kills([alive(0, finished_at=10.0), alive(1, finished_at=12.0)], Orders())
    assert kills == {0: 12.0 + TEARDOWN_SECONDS, 1: 12.0 + TEARDOWN_SECONDS}
    ended = RankView(RankEnd(1, exit_code=0, ended_at=13.0), False)
    assert plan_kills([alive(0, finished_at=10.0), ended], Orders()) == {0: 13.0 + TEARDOWN_SECONDS}


def test_orders_end_everybody() -> None:
    assert plan_kills([alive(0), alive(1)], Orders(peer_failed_at=10.0)) == {0: 10.0, 1: 10.0}
    assert plan_kills([alive(0)], Orders(peer_failed_at=20.0, stop_at=10.0)) == {0: 10.0}
