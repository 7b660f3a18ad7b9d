"""Auxiliary places, for requests without slots: they go by priority, and less urgent work makes room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.domain.state import ReasonCode
from services.scheduler.placement import AgentRoom, PendingRequest, Plan, PoolConfig, Running, Snapshot, plan

NOW = 1000.0
PREEMPTIVE = PoolConfig("default", is_preemption_on=True, backfill="on_call")
SHARED = PoolConfig("default", policy="fair_share", is_preemption_on=True)
POLICIES = pytest.mark.parametrize("policy", ["priority", "fair_share", "round_robin"])
PREEMPTIVES = pytest.mark.parametrize("config", [PREEMPTIVE, SHARED])


def _request(number: int, priority: int = 42, **fields: object) -> PendingRequest:
    base = PendingRequest(f"{number}.1", str(number), "default", 0, priority, submitted_at=float(number))
    return replace(base, **fields)  # type: ignore[arg-type]  # any field


def _work(number: int, agent: str, priority: int = 42, **fields: object) -> Running:
    base = Running(f"{number}.1.1", f"{number}.1", str(number), "default", {agent: 0}, priority, started_at=500.0)
    return replace(base, **fields)  # type: ignore[arg-type]  # any field


def _plan(config: PoolConfig, requests: list[PendingRequest], running: list[Running], places: int = 1) -> Plan:
    """Plans for agents a and b with so many places each, and two busy slots that do not matter here."""
    slotted = Running("90.1.1", "90.1", "90", "default", {"a": 2}, 99, started_at=900.0)
    agents = tuple(
        AgentRoom(
            name, "default", 2, 2, max_zero_slot=places, used_zero_slot=sum(name in w.slots_by_agent for w in running)
        )
        for name in ("a", "b")
    )
    return plan(Snapshot((config,), agents, tuple(requests), (*running, slotted)), NOW)


def _stopped(decided: Plan) -> list[tuple[str, str]]:
    return [(preemption.allocation_id, preemption.for_trial_id) for preemption in decided.preemptions]


@POLICIES
def test_the_most_urgent_gets_the_free_place(policy: str) -> None:
    busy = [_work(10, "a", group="2")]
    requests = [_request(1, 60), _request(2, 10), _request(3, 42)]
    decided = _plan(PoolConfig("default", policy), requests, busy)
    assert [assignment.trial_id for assignment in decided.assignments] == ["2.1"]
    assert decided.reasons["1.1"].message == "needs an auxiliary place; all are taken in pool 'default'"


@PREEMPTIVES
def test_less_urgent_work_makes_room(config: PoolConfig) -> None:
    """The least urgent goes first, the newest of equals; work with slots frees no place."""
    running = [_work(10, "a", 60, started_at=700.0), _work(11, "b", 60, started_at=800.0)]
    decided = _plan(config, [_request(1, 42), _request(2, 42), _request(3, 42)], running)
    assert _stopped(decided) == [("11.1.1", "1.1"), ("10.1.1", "2.1")]
    reason = decided.reasons["1.1"]
    assert (reason.code, reason.blocking_ids) == (ReasonCode.WAITING_FOR_PREEMPTION, ("11.1.1",))
    assert reason.message == "needs an auxiliary place; waits for trial 11.1 (attempt 1) to stop"
    assert decided.reasons["3.1"].code is ReasonCode.NO_CAPACITY


@PREEMPTIVES
def test_a_place_that_is_about_to_be_free_needs_no_second_stop(config: PoolConfig) -> None:
    running = [_work(10, "a", 60, is_stopping=True), _work(11, "b", 60)]
    decided = _plan(config, [_request(1, 10)], running)
    assert _stopped(decided) == []
    assert decided.reasons["1.1"].blocking_ids == ("10.1.1",)
    assert _stopped(_plan(config, [_request(1, 10), _request(2, 20)], running)) == [("11.1.1", "2.1")]
    blocked = _request(1, 10, blocklist=("a",))
    assert _stopped(_plan(config, [blocked], running)) == [("11.1.1", "1.1")]


@pytest.mark.parametrize(
    ("config", "work"),
    [
        (PREEMPTIVE, _work(10, "a", 42)),
        (PREEMPTIVE, _work(10, "a", 60, is_preemptible=False)),
        (SHARED, _work(10, "a", 10)),
        (replace(PREEMPTIVE, is_preemption_on=False, backfill=True), _work(10, "a", 60)),
        (replace(PREEMPTIVE, policy="round_robin", backfill=True), _work(10, "a", 60)),
    ],
)
def test_others_keep_their_places(config: PoolConfig, work: Running) -> None:
    other = _work(11, "b", 1)
    decided = _plan(config, [_request(1, 42)], [work, other])
    assert (_stopped(decided), decided.reasons["1.1"].code) == ([], ReasonCode.NO_CAPACITY)


def test_where_places_were_taken_away_as_many_have_to_end_as_are_too_many() -> None:
    running = [_work(10, "a", 60, started_at=600.0), _work(11, "a", 60, started_at=700.0), _work(12, "b", 1)]
    decided = _plan(PREEMPTIVE, [_request(1, 42)], running)
    assert _stopped(decided) == [("11.1.1", "1.1"), ("10.1.1", "1.1")]
    kept = [replace(running[0], priority=1), *running[1:]]
    assert _stopped(_plan(PREEMPTIVE, [_request(1, 42)], kept)) == []
