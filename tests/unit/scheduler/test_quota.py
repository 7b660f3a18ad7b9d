"""Quotas in the planner: what waits, what goes on beside it, and what a reason says."""

from __future__ import annotations

import json
from dataclasses import replace
from unittest.mock import patch

import pytest

from gangline.domain.state import ReasonCode
from gangline.errors import GanglineError
from services.scheduler.placement import AgentRoom, PendingRequest, Plan, PoolConfig, Running, Snapshot, plan
from services.scheduler.placement.capacity.ledger import Ledger
from services.scheduler.placement.request.snapshot import Limit
from services.scheduler.placement.request.snapshot_change import apply_changes
from services.scheduler.placement.simulation_file import parse_simulation

POOL = PoolConfig("default", is_preemption_on=True)
ADA = Limit("user/ada", "user ada", 8)
NOW = 100.0
DECEMBER = 1796083200.0


def _request(number: int, slots: int, *limits: str, **fields: object) -> PendingRequest:
    base = PendingRequest(f"{number}.1", str(number), "default", slots, submitted_at=float(number), limits=limits)
    return replace(base, **fields)  # type: ignore[arg-type]  # any field


def _running(number: int, slots: int, *limits: str, **fields: object) -> Running:
    base = Running(f"{number}.1.1", f"{number}.1", str(number), "default", {"a1": slots}, limits=limits)
    return replace(base, **fields)  # type: ignore[arg-type]  # any field


def _snapshot(requests: list[PendingRequest], running: list[Running], *limits: Limit, slots: int = 32) -> Snapshot:
    used = sum(work.slots for work in running)
    agents = (AgentRoom("a1", "default", slots, used),)
    return Snapshot((POOL,), agents, tuple(requests), tuple(running), limits={limit.id: limit for limit in limits})


def _assigned(decided: Plan) -> list[str]:
    return [assignment.trial_id for assignment in decided.assignments]


def test_a_user_at_the_quota_waits_and_holds_nobody_back() -> None:
    running = [_running(1, 4, ADA.id, estimated_end_at=500.0), _running(2, 4, ADA.id, estimated_end_at=300.0)]
    requests = [_request(3, 2, ADA.id, priority=1), _request(4, 16), _request(5, 1)]
    snapshot = _snapshot(requests, running, ADA)
    decided = plan(snapshot, NOW)
    assert _assigned(decided) == ["4.1", "5.1"]
    assert decided.preemptions == ()
    assert decided.reservations == {}
    reason = decided.reasons["3.1"]
    assert reason.code is ReasonCode.QUOTA_EXCEEDED
    assert reason.message == "needs 2 slots; user ada has or was promised 8 of 8 slots"
    assert reason.would_start_if == "these end: trial 2.1 (attempt 1)"
    assert reason.blocking_ids == ("2.1.1",)
    assert reason.eta_at == 300.0
    assert "3.1" in _assigned(plan(apply_changes(snapshot, decided.changes["3.1"]), NOW))


def test_a_quota_is_given_out_once_in_a_plan_and_to_the_first() -> None:
    requests = [_request(number, 3, ADA.id) for number in (1, 2, 3)]
    decided = plan(_snapshot(requests, [], ADA), NOW)
    assert _assigned(decided) == ["1.1", "2.1"]
    assert decided.reasons["3.1"].would_start_if == "it is moved to the front of the queue"


def test_a_quota_counts_over_all_pools() -> None:
    pools = (PoolConfig("east"), PoolConfig("west"))
    agents = (AgentRoom("e1", "east", 8, 3), AgentRoom("w1", "west", 8))
    running = (replace(_running(1, 3, ADA.id), pool="east", slots_by_agent={"e1": 3}),)
    requests = tuple(_request(n, 3, ADA.id, pool=pool) for n, pool in ((2, "east"), (3, "west"), (4, "west")))
    decided = plan(Snapshot(pools, agents, requests, running, limits={ADA.id: ADA}), NOW)
    assert _assigned(decided) == ["2.1"], "3 run, 3 start in the pool that is planned first, and 3 more are above 8"
    assert "user ada has or was promised 6 of 8 slots" in decided.reasons["3.1"].message


def test_both_quotas_of_a_request_count() -> None:
    lab = Limit("workspace/3", "workspace lab", 4)
    running = [_running(1, 3, lab.id)]
    decided = plan(_snapshot([_request(2, 2, ADA.id, lab.id), _request(3, 1, ADA.id, lab.id)], running, ADA, lab), NOW)
    assert _assigned(decided) == ["3.1"]
    assert "workspace lab has or was promised 4 of 4 slots" in decided.reasons["2.1"].message


def test_nothing_starts_once_the_slot_hours_are_used_up_until_the_month_ends() -> None:
    spent = Limit("user/ada", "user ada", None, 100.0, 100.25, DECEMBER)
    snapshot = _snapshot([_request(1, 1, spent.id), _request(2, 0, spent.id), _request(3, 1)], [], spent)
    decided = plan(snapshot, NOW)
    assert _assigned(decided) == ["2.1", "3.1"], "work without slots uses no slot-hours"
    assert decided.look_at == DECEMBER
    reason = decided.reasons["1.1"]
    assert reason.message == "needs 1 slot; user ada has used 100.25 of 100 slot-hours of this month"
    assert "raised above 100.25 slot-hours a month, or the next month, 2026-12, begins" in reason.would_start_if
    assert reason.eta_at == DECEMBER
    left = replace(spent, used_hours=99.9)
    assert "1.1" in _assigned(plan(replace(snapshot, limits={left.id: left}), NOW))


def test_work_at_the_quota_preempts_nothing() -> None:
    others = [_running(1, 8, priority=90), _running(2, 8, ADA.id)]
    decided = plan(_snapshot([_request(3, 4, ADA.id, priority=1)], others, ADA, slots=16), NOW)
    assert decided.preemptions == ()
    assert decided.reasons["3.1"].code is ReasonCode.QUOTA_EXCEEDED


@pytest.mark.parametrize(("max_slots", "grows"), [(8, True), (7, False)])
def test_smaller_work_grows_within_the_quota_only(max_slots: int, grows: bool) -> None:
    wanted = _request(1, 8, ADA.id)
    smaller = _running(1, 4, ADA.id, grow_at=1.0, wanted=wanted)
    decided = plan(_snapshot([], [smaller], replace(ADA, max_slots=max_slots)), NOW)
    assert [preemption.is_growth for preemption in decided.preemptions] == [True] * grows


def test_smaller_work_does_not_grow_beside_what_its_growth_would_exceed() -> None:
    """The growth is promised first, and counts against the quota for the requests after it."""
    smaller = _running(1, 4, ADA.id, grow_at=1.0, wanted=_request(1, 8, ADA.id))
    decided = plan(_snapshot([_request(2, 2, ADA.id, priority=90)], [smaller], replace(ADA, max_slots=9)), NOW)
    assert [preemption.allocation_id for preemption in decided.preemptions] == ["1.1.1"]
    assert decided.reasons["2.1"].code is ReasonCode.QUOTA_EXCEEDED


def test_a_request_above_its_quota_names_the_quota_that_it_needs() -> None:
    decided = plan(_snapshot([_request(1, 16, ADA.id)], [], ADA), NOW)
    reason = decided.reasons["1.1"]
    assert reason.message == "needs 16 slots; user ada may have 8 at a time"
    assert reason.would_start_if == "the quota of user ada is raised to 16 slots"
    assert reason.eta_at is None


def test_shares_are_not_kept_for_work_that_its_quota_holds_back() -> None:
    """Group b keeps the slots that ada's request cannot use, so nothing of b is beyond its share."""
    config = PoolConfig("default", policy="fair_share", is_preemption_on=True)
    running = [_running(3, 5, group="b"), replace(_running(4, 3, group="b"), slots_by_agent={"a1": 3})]
    requests = [_request(1, 8, ADA.id), _request(2, 2, group="c")]
    snapshot = replace(_snapshot(requests, running, replace(ADA, max_slots=0), slots=8), pools=(config,))
    assert plan(snapshot, NOW).preemptions == ()


def test_a_plan_asks_one_request_of_each_kind_that_a_quota_refuses() -> None:
    requests = [_request(number, 1, ADA.id) for number in range(10, 1010)]
    with patch.object(Ledger, "consider", autospec=True, side_effect=Ledger.consider) as consider:
        plan(_snapshot(requests, [_running(1, 8, ADA.id)], ADA), NOW)
    assert consider.call_count <= 1


def test_the_file_of_the_simulator_has_quotas() -> None:
    document = {
        "agents": [{"id": "a1", "slots": 8}],
        "quotas": [{"id": "ada", "max_slots": 4, "held_elsewhere": 2}],
        "tasks": [{"id": "x", "slots_needed": 3, "quotas": ["ada"]}, {"id": "y", "slots_needed": 2, "quotas": ["ada"]}],
    }
    simulation = parse_simulation(json.dumps(document))
    assert _assigned(plan(simulation.snapshot, simulation.now)) == ["y"]
    document["tasks"][0]["quotas"] = ["bob"]
    with pytest.raises(GanglineError, match=r"tasks\[0\].quotas\[0\]: there is no quota 'bob'"):
        parse_simulation(json.dumps(document))
