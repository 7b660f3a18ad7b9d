"""Which sizes a pool can hold, and that the planner agrees."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from services.scheduler.placement.capacity.feasibility import can_hold, fitting_sizes, never_fits
from services.scheduler.placement.capacity.fit import find_fit
from services.scheduler.placement.capacity.room import Room
from services.scheduler.placement.request.snapshot import AgentRoom, PendingRequest, PoolConfig


def test_two_agents_of_two_slots() -> None:
    assert fitting_sizes([2, 2]) == [1, 2, 4]
    assert fitting_sizes([2, 2], is_single_agent=True) == [1, 2]


def test_the_sentence_names_all_sizes_when_they_are_few() -> None:
    assert never_fits(7, "default", [2, 2], is_single_agent=False) == (
        "7 can never fit pool 'default' (2 agents of 2 slots): sizes that fit are 1, 2, 4"
    )


def test_neighbours_are_one_range() -> None:
    sentence = never_fits(9, "gpu", [8, 8, 1], is_single_agent=False)
    assert sentence == (
        "9 can never fit pool 'gpu' (2 agents of 8 slots, 1 agent of 1 slot): sizes that fit are 1 to 8, 16"
    )


def test_a_large_pool_names_the_nearest() -> None:
    sentence = never_fits(17, "gpu", [8] * 100, is_single_agent=False)
    assert sentence is not None
    assert sentence.endswith("the nearest sizes that fit are 16 and 24")


def test_a_single_agent_request_says_so() -> None:
    sentence = never_fits(4, "default", [2, 2], is_single_agent=True)
    assert sentence == (
        "4 can never fit on a single agent of pool 'default' (2 agents of 2 slots): sizes that fit are 1, 2"
    )


def test_a_pool_without_agents_refuses_nothing() -> None:
    assert never_fits(7, "default", [], is_single_agent=False) is None


@given(
    agents=st.lists(st.integers(0, 8), min_size=1, max_size=6),
    slots=st.integers(1, 40),
    is_single_agent=st.booleans(),
    is_heterogeneous=st.booleans(),
)
def test_planner_and_feasibility_agree_on_idle_agents(
    agents: list[int], slots: int, is_single_agent: bool, is_heterogeneous: bool
) -> None:
    rooms = [AgentRoom(f"a{number}", "default", size) for number, size in enumerate(agents)]
    config = PoolConfig("default", allow_heterogeneous_fits=is_heterogeneous)
    request = PendingRequest("1.1", "1", "default", slots, is_single_agent=is_single_agent)
    fits = find_fit(request, Room(rooms, config)) is not None
    assert fits == can_hold(slots, agents, is_single_agent, is_heterogeneous)
    assert fits == (slots in fitting_sizes(agents, is_single_agent, is_heterogeneous))
