"""Which commits have the planner look at once."""

from __future__ import annotations

from gangline.domain.allocation import Allocation, Request
from gangline.domain.experiment import Experiment
from gangline.domain.resource import Agent
from gangline.domain.state import State as Stage
from services.scheduler.leader.cycle import full_pools, is_urgent
from services.scheduler.placement import AgentRoom, Plan, PoolConfig, Snapshot
from services.scheduler.placement.request.assignment import Assignment
from services.scheduler.state.records import StateChange

POOLS = (PoolConfig("default"), PoolConfig("other"))


def _request(slots: int = 1, pool: str = "default") -> Request:
    return Request("1.1", 1, pool, slots)


def _experiment(state: Stage) -> Experiment:
    return Experiment(1, "n", "ann", "{}", "", state)


def _is_urgent(*puts: object, full: tuple[str, ...] = ("default",), is_known: bool = False) -> bool:
    return is_urgent(StateChange(tuple(puts)), full, lambda _: is_known)  # type: ignore[arg-type]  # records of any kind


def test_a_submit_into_a_full_pool_is_not_urgent() -> None:
    assert not _is_urgent(_experiment(Stage.QUEUED), _request())


def test_a_submit_that_may_start_is_urgent() -> None:
    assert _is_urgent(_experiment(Stage.QUEUED), _request(), full=())
    assert _is_urgent(_request(pool="other"))
    # An auxiliary place, which takes no slot.
    assert _is_urgent(_request(slots=0))


def test_what_frees_slots_or_ends_work_is_urgent_in_a_full_pool_too() -> None:
    assert is_urgent(StateChange(deletes=((Allocation, "1.1.1"),)), ("default",), lambda _: False)
    assert _is_urgent(Agent("a1"))
    for state in (Stage.QUEUED, Stage.PAUSED, Stage.STOPPING):
        assert _is_urgent(_experiment(state), is_known=True)
    for state in (Stage.STARTING, Stage.RUNNING, Stage.TERMINAL):
        assert not _is_urgent(_experiment(state), is_known=True)


def _snapshot(*agents: AgentRoom) -> Snapshot:
    return Snapshot(POOLS, agents)


def test_a_pool_is_full_when_no_usable_agent_has_a_slot_left_after_the_plan() -> None:
    none = Plan((), (), {})
    assert full_pools(_snapshot(), none) == {"default", "other"}
    busy, free = AgentRoom("a1", "default", 4, used=4), AgentRoom("a2", "default", 4, used=3)
    assert full_pools(_snapshot(busy, AgentRoom("b1", "other", 1)), none) == {"default"}
    assert full_pools(_snapshot(busy, free), none) == {"other"}
    assert full_pools(_snapshot(busy, AgentRoom("a2", "default", 4, is_usable=False)), none) == {"default", "other"}
    taking = Plan((Assignment("1.1", {"a2": 1}),), (), {})
    assert full_pools(_snapshot(busy, free), taking) == {"default", "other"}
