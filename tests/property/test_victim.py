"""Which running work is stopped for a request: enough of it, none of it without need, the most urgent last."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given, settings

from services.scheduler.placement import AgentRoom, PendingRequest, PoolConfig, Running
from services.scheduler.placement.capacity.fit import find_fit
from services.scheduler.placement.capacity.room import Room
from services.scheduler.placement.capacity.victim import find_victims, in_order, less_urgent
from tests.support.examples import examples

NOW = 1000.0
POOL = "default"


@st.composite
def works_on(draw: st.DrawFn, agent_id: str) -> list[Running]:
    return [
        Running(
            f"{agent_id}.{number}.1",
            f"{agent_id}.{number}",
            "g",
            POOL,
            {agent_id: slots},
            priority=draw(st.sampled_from([10, 42, 50, 60])),
            is_preemptible=draw(st.integers(0, 5)) > 0,
            started_at=draw(st.sampled_from([100.0, 500.0, 900.0])),
            checkpoint_age_seconds=draw(st.sampled_from([None, 5.0, 300.0])),
            is_stopping=draw(st.integers(0, 9)) == 0,
        )
        for number, slots in enumerate(draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)))
    ]


def _room(works: list[Running], free: int) -> Room:
    """Each agent is as large as its work and so many free slots."""
    used: dict[str, int] = {}
    for work in works:
        for agent_id, slots in work.slots_by_agent.items():
            used[agent_id] = used.get(agent_id, 0) + slots
    agents = [AgentRoom(agent_id, POOL, slots + free, slots) for agent_id, slots in used.items()]
    return Room(agents, PoolConfig(POOL))


def _loss(work: Running) -> float:
    return NOW - work.started_at if work.checkpoint_age_seconds is None else work.checkpoint_age_seconds


@given(works_on("a"))
def test_the_least_urgent_and_newest_goes_first_and_among_equals_the_one_that_loses_least(works: list[Running]) -> None:
    ordered = in_order(works, NOW)
    able = {work.allocation_id for work in works if work.is_preemptible and not work.is_stopping}
    assert {work.allocation_id for work in ordered} == able
    for first, second in pairwise(ordered):
        assert (-first.priority, -first.started_at, _loss(first)) <= (
            -second.priority,
            -second.started_at,
            _loss(second),
        )


@given(works_on("a"), st.integers(1, 99))
def test_only_work_of_a_lower_priority_may_be_stopped(works: list[Running], priority: int) -> None:
    ordered = in_order(works, NOW)
    request = PendingRequest("1.1", "h", POOL, 1, priority=priority)
    assert [*less_urgent(ordered, request)] == [work for work in ordered if work.priority > priority]


@settings(max_examples=examples(300))
@given(works_on("a"), st.integers(0, 3), st.integers(1, 12))
def test_on_one_agent_no_stopped_work_could_be_replaced_by_less_urgent_work(
    works: list[Running], free: int, slots: int
) -> None:
    """Even if all work that goes before it in order were stopped, the rest of the stopped work would not be enough."""
    victims = in_order(works, NOW)
    request = PendingRequest("1.1", "h", POOL, slots, is_single_agent=True)
    room = _room(works, free)
    if free >= slots:
        return
    answer = find_victims(victims, slots, room, lambda: find_fit(request, room))
    if answer is None:
        assert free + sum(work.slots for work in victims) < slots
        assert room.free == free
        return
    stopped, fit, num_seen = answer
    assert fit == {"a": slots}
    assert room.free == free + sum(work.slots for work in stopped) >= slots
    assert num_seen <= len(victims)
    places = sorted(victims.index(work) for work in stopped)
    for place in places:
        others = sum(victims[index].slots for index in {*range(place), *places} - {place})
        assert free + others < slots, victims[place].allocation_id


@settings(max_examples=examples(200))
@given(works_on("a"), works_on("b"), st.integers(0, 2), st.integers(1, 16), st.booleans())
def test_no_work_is_stopped_without_need(
    on_a: list[Running], on_b: list[Running], free: int, slots: int, is_single_agent: bool
) -> None:
    works = [*on_a, *(replace(work, started_at=work.started_at + 1) for work in on_b)]
    victims = in_order(works, NOW)
    request = PendingRequest("1.1", "h", POOL, slots, is_single_agent=is_single_agent)
    room = _room(works, free)
    before = room.free
    if find_fit(request, room) is not None:
        return
    answer = find_victims(victims, slots, room, lambda: find_fit(request, room))
    if answer is None:
        assert room.free == before
        for work in victims:
            room.give_back(work.slots_by_agent)
        assert find_fit(request, room) is None
        return
    stopped, fit, _ = answer
    assert sum(fit.values()) == slots
    assert find_fit(request, room) is not None
    for work in stopped:
        room.add(*next((agent_id, -count) for agent_id, count in work.slots_by_agent.items()))
        assert find_fit(request, room) is None, work.allocation_id
        room.give_back(work.slots_by_agent)
