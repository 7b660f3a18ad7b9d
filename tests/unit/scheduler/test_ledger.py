"""The parts of the planner's ledger: slots of stopping work, the waiting requests, and answers on demand."""

from __future__ import annotations

import pytest

from services.scheduler.placement import AgentRoom, PendingRequest, PoolConfig, Running
from services.scheduler.placement.capacity.coming import ComingSlots
from services.scheduler.placement.capacity.ledger import Ledger
from services.scheduler.placement.capacity.preemption import no_victims
from services.scheduler.placement.capacity.promise import Cause, in_turn
from services.scheduler.placement.capacity.room import Room
from services.scheduler.placement.request.queue import PoolQueue
from services.scheduler.placement.request.snapshot import PoolView

NOW = 1000.0
POOL = PoolConfig("default")


def _request(number: int, slots: int = 1) -> PendingRequest:
    return PendingRequest(f"{number}.1", "g", "default", slots, submitted_at=float(number))


def _work(number: int, slots: int, is_stopping: bool = False) -> Running:
    return Running(f"{number}.1.1", f"{number}.1", "g", "default", {"a": slots}, is_stopping=is_stopping)


def _coming() -> tuple[ComingSlots, Room]:
    """One of four slots is free, two belong to work that stops, one to work that runs."""
    room = Room([AgentRoom("a", "default", 4, used=3)], POOL)
    return ComingSlots([_work(1, 2, is_stopping=True), _work(2, 1)], room), room


def test_coming_slots_are_free_only_while_they_are_shown() -> None:
    coming, room = _coming()
    assert (room.free, dict(coming.slots_by_agent)) == (1, {"a": 2})
    with coming.shown():
        assert room.free == 3
    assert (room.free, dict(coming.slots_by_agent)) == (1, {"a": 2})


def test_claimed_slots_are_no_longer_coming() -> None:
    coming, room = _coming()
    with coming.shown():
        room.take({"a": 2})
    # The claim takes the free slot and one that is coming.
    assert (room.free, dict(coming.slots_by_agent)) == (0, {"a": 1})
    assert coming.blocking({"a": 2}) == ("1.1.1",)
    assert coming.blocking({"b": 2}) == ()


def test_more_coming_slots_make_refused_requests_try_again() -> None:
    coming, room = _coming()
    key = _request(1, 4).shape, True
    coming.refuse(key)
    assert coming.is_refused(key)
    with coming.shown():
        room.give_back({"a": 1})
        coming.release([_work(2, 1)])
    assert not coming.is_refused(key)
    assert (room.free, dict(coming.slots_by_agent)) == (1, {"a": 3})


def test_slots_kept_for_growth_are_not_claimed_by_others() -> None:
    coming, _ = _coming()
    coming.keep_for_growth(_work(2, 1), {})
    assert dict(coming.slots_by_agent) == {"a": 2}
    assert [work.allocation_id for work in coming.stopping] == ["1.1.1", "2.1.1"]


@pytest.mark.parametrize(("cause", "counts"), [("held", False), ("backoff", False), ("full", True), (None, True)])
def test_a_request_is_behind_others_that_might_take_its_slots(cause: Cause | None, counts: bool) -> None:
    answers = [(_request(1), cause), (_request(2, slots=0), "full"), (_request(3), "full")]
    waiting = {answer.request.trial_id: answer.is_behind for answer in in_turn(answers, is_order_fixed=True)}
    assert waiting["3.1"] is counts
    assert waiting["2.1"] is False, "it takes no slots"
    assert ("1.1" in waiting) is (cause is not None)
    assert all(answer.is_behind for answer in in_turn(answers, is_order_fixed=False))


def _ledger() -> Ledger:
    """A full pool, for whose three requests only the first was considered."""
    requests = PoolQueue.of([_request(number) for number in (1, 2, 3)])
    ledger = Ledger(PoolView(POOL, (AgentRoom("a", "default", 2, used=2),), requests), NOW)
    ledger.consider_queue(requests, lambda _: no_victims)
    return ledger


def test_requests_that_were_passed_over_are_answered_once() -> None:
    ledger = _ledger()
    waiting = ledger.waiting()
    assert [(standing.request.trial_id, standing.cause, standing.is_behind) for standing in waiting] == [
        ("1.1", "full", False),
        ("2.1", "full", True),
        ("3.1", "full", True),
    ]
    assert ledger.waiting() == waiting


def test_answers_on_demand_must_not_change_the_plan() -> None:
    ledger = _ledger()
    # A defect of the kind that the assertion is for: the answers of the first request are forgotten, and there is room.
    ledger._settled.clear()
    ledger.reserved._refused.clear()
    ledger.room.add("a", 1)
    with pytest.raises(AssertionError, match="passed over"):
        ledger.waiting()
