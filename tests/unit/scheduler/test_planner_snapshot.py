"""The planner's picture of the leader's state, and its dump."""

from __future__ import annotations

import json

import pytest

from gangline.domain.allocation import Request
from gangline.domain.experiment import Trial
from gangline.domain.state import Availability, ExitKind, ReasonCode
from gangline.errors import ErrorKind, GanglineError
from services.scheduler.leader.planner_snapshot import take_snapshot
from services.scheduler.placement import Plan, PoolConfig, plan
from services.scheduler.placement.request.snapshot_change import EndWork
from services.scheduler.placement.simulation_file import dump_plan, dump_simulation, parse_simulation
from services.scheduler.state.estimate import Progress
from services.scheduler.state.hold import held_reason
from services.scheduler.state.records import StateChange, get
from services.scheduler.transition.end import pause_experiment
from services.scheduler.transition.report import progressed
from services.scheduler.transition.submit_check import find_pool
from tests.support.scheduler_model import RULES, Model

POOLS = (PoolConfig("default", is_preemption_on=True), PoolConfig("lab", default_priority=10))


def _model() -> Model:
    model = Model(POOLS)
    model.connect("a1", 2)
    return model


def test_positions_come_from_the_experiment() -> None:
    model = _model()
    model.submit("one", 2)
    model.now += 5
    model.submit("two", 2)
    model.move(2, 1)
    positions = {request.trial_id: request.queue_position for request in model.snapshot().requests}
    assert positions == {"1.1": 1000.0, "2.1": 999.0}


def test_a_pool_has_its_own_default_priority() -> None:
    model = _model()
    model.submit("lab", 1, resource_pool="lab")
    [request] = model.snapshot().requests
    assert request.priority == 10
    assert [group.priority for group in model.snapshot().groups.values()] == [10]


def test_paused_requests_are_held_and_say_by_whom() -> None:
    model = _model()
    model.submit("r")
    model.leader.commit(lambda records: pause_experiment(records, 1, "paused by ann", RULES, model.now))
    [request] = model.snapshot().requests
    assert request.hold is ReasonCode.PAUSED
    plan = model.plan()
    reason = held_reason(model.experiments()[0], plan.reasons["1.1"], plan.changes["1.1"])
    assert (reason.code, reason.message) == (ReasonCode.PAUSED, "experiment 1 is paused by ann")
    assert reason.would_start_if == "it is activated (gangline experiment activate 1)"


def test_paused_request_names_every_change_that_would_start_it() -> None:
    model = _model()
    model.submit("r")
    model.leader.commit(lambda records: pause_experiment(records, 1, "paused by ann", RULES, model.now))
    plan, ends = model.plan(), EndWork(("2.1.1",))
    reason = held_reason(model.experiments()[0], plan.reasons["1.1"], (*plan.changes["1.1"], ends))
    assert (
        reason.would_start_if == "it is activated (gangline experiment activate 1) and these end: trial 2.1 (attempt 1)"
    )
    # The planner's words stay where it has no record of a change.
    assert held_reason(model.experiments()[0], plan.reasons["1.1"], ()).would_start_if == "it is activated"


def test_estimates_reach_requests_and_running_work() -> None:
    model = _model()
    model.submit("r", 2)
    model.cycle()
    pace = Progress(10, 100, 3.0, model.now)
    model.leader.commit(lambda records: progressed(records, "1.1", pace, RULES, model.now))
    trial = get(model.state, Trial, "1.1")
    assert (trial.batches_completed, trial.batches_total, trial.seconds_per_batch) == (10, 100, 3.0)
    assert model.snapshot().running[0].estimated_end_at == model.now + 300
    model.exit("1.1.1", "a1", ExitKind.PREEMPTED)
    assert model.snapshot().requests[0].estimated_seconds == 300


def test_a_drained_agent_that_is_away_says_both() -> None:
    model = _model()
    model.change_agent("a1", Availability.DISABLED)
    model.connected.clear()
    assert model.snapshot().agents[0].problem == "disabled by an administrator and away"


def test_a_dump_is_planned_alike_when_work_runs_on_an_agent_that_has_left_its_pool() -> None:
    """Its slots are not given out again; the plan and its reasons are the same."""
    model = _model()
    model.connect("a2", 2)
    for number in range(4):
        model.submit(f"r{number}", 2, priority=80 - number)
        model.cycle()
    model.connect("a2", 2, pool="lab")
    snapshot = model.snapshot()
    assert parse_simulation(json.dumps(dump_simulation(snapshot, "lab", model.now))).snapshot.agents[0].used == 2
    again = parse_simulation(json.dumps(dump_simulation(snapshot, "default", model.now)))
    assert _planned(plan(again.snapshot, again.now)) == _planned(plan(snapshot, model.now))


def _planned(decided: Plan) -> tuple[object, ...]:
    told = dump_plan(decided)
    codes = {trial_id: reason["code"] for trial_id, reason in told["reasons"].items()}
    return told["to_allocate"], told["to_release"], codes


def test_pools_are_named_where_none_or_an_unknown_one_is_asked_for() -> None:
    assert find_pool("lab", POOLS).name == "lab"
    assert find_pool("", POOLS[:1]).name == "default"
    with pytest.raises(GanglineError) as unknown:
        find_pool("labs", POOLS)
    with pytest.raises(GanglineError) as unnamed:
        find_pool("", POOLS)
    assert (unknown.value.code, unknown.value.kind) == ("pool.not_found", ErrorKind.NOT_FOUND)
    assert unknown.value.message == "there is no pool 'labs'; the pools are default, lab"
    assert (unnamed.value.code, unnamed.value.message) == ("pool.unnamed", "name one of the pools: default, lab")


def test_what_waits_for_its_cap_is_expected_when_its_own_work_ends() -> None:
    """There is room, but not for this experiment: it starts when what it holds has ended."""
    model = Model(POOLS)
    model.connect("a1", 8)
    model.submit("r", 2, max_slots=2)
    model.cycle()
    trial = Trial("1.2", 1, 2, batches_total=10, seconds_per_batch=9.0)
    request = Request("1.2", 1, "default", 2)
    pace = Progress(0, 100, 3.0, model.now)
    model.leader.commit(lambda records: progressed(records, "1.1", Progress(1, 100, 3.0, 0.0), RULES, model.now))
    model.leader.commit(lambda _: StateChange(puts=(trial, request)))
    snapshot = take_snapshot(model.state, POOLS, {}, {"1.1": pace}, now=model.now)
    reason = plan(snapshot, model.now).reasons["1.2"]
    assert reason.code is ReasonCode.QUOTA_EXCEEDED
    assert reason.blocking_ids == ("1.1.1",)
    assert reason.eta_at == model.now + 300
