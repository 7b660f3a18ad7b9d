"""Trials that go on on fewer slots, in the leader's state: when they shrink and grow, and what keeps them from it."""

from __future__ import annotations

import pytest

from gangline.domain.allocation import Allocation, Request
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.state import Availability, ExitKind, ReasonCode, State
from services.scheduler.placement import AgentRoom, Group, PendingRequest, PoolConfig, Running, Snapshot, plan
from services.scheduler.state.estimate import Estimates, Progress
from services.scheduler.state.records import get
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.deadline import next_deadline
from services.scheduler.transition.end import activate_experiment, pause_experiment
from services.scheduler.transition.exit import unended_agents
from services.scheduler.transition.report import progressed
from services.scheduler.transition.size import may_have
from tests.support.scheduler_model import RULES, Model

SHRINK, RESIZE = RULES.shrink_seconds, RULES.resize_seconds


def _start(model: Model) -> None:
    """Allocations that have been placed come up."""
    for allocation in model.allocations():
        for member in allocation.members:
            if allocation.state is State.STARTING:
                model.come_up(allocation.id, member.node_rank)


def _cycle(model: Model) -> None:
    model.cycle()
    _start(model)


def _wait(model: Model, seconds: float) -> None:
    model.pass_time(seconds)
    _cycle(model)


def _end(model: Model, allocation_id: str, kind: ExitKind) -> None:
    for agent_id in unended_agents(get(model.state, Allocation, allocation_id)):
        model.exit(allocation_id, agent_id, kind)
    _cycle(model)


def _model(pool: PoolConfig | None = None) -> Model:
    """1.1 runs on two agents of two slots each, and may go on on two slots or one."""
    model = Model((pool or PoolConfig("default"),))
    model.connect("a1", 2)
    model.connect("a2", 2)
    model.submit("elastic", 4, min_slots_per_trial=1)
    _cycle(model)
    assert _sizes(model) == {"1.1.1": (4, 0)}
    return model


def _shrunk() -> Model:
    """a2 is lost, and 1.1 runs on the two slots of a1."""
    model = _model()
    model.lose("a2")
    model.exit("1.1.1", "a1", ExitKind.PEER_FAILED)
    _wait(model, SHRINK)
    assert _sizes(model) == {"1.1.2": (2, 4)}
    return model


def _sizes(model: Model) -> dict[str, tuple[int, int]]:
    """Slots and full slots, by live allocation."""
    return {allocation.id: (allocation.num_slots, allocation.full_slots) for allocation in model.allocations()}


def _trial(model: Model) -> Trial:
    return get(model.state, Trial, "1.1")


def test_a_trial_that_lost_its_machine_goes_on_on_fewer_slots_after_a_wait() -> None:
    model = _model()
    model.lose("a2")
    model.exit("1.1.1", "a1", ExitKind.PEER_FAILED)
    _cycle(model)
    assert _sizes(model) == {}, "not at once"
    request = get(model.state, Request, "1.1")
    assert (request.slots, request.shrink_at, request.kept_slots) == (4, model.now + SHRINK, 0)
    assert next_deadline([], [request], model.now) == request.shrink_at, "the leader looks again by itself"
    reason = model.plan().reasons["1.1"]
    assert reason.code is ReasonCode.AGENTS_UNHEALTHY
    assert reason.message.endswith(f"; from {SHRINK:.0f} s on it may start on 2 or 1 slots instead")
    _wait(model, SHRINK - 1)
    assert _sizes(model) == {}
    _wait(model, 1)
    assert _sizes(model) == {"1.1.2": (2, 4)}
    trial = _trial(model)
    assert (trial.restarts, trial.attempt_slots, trial.resized_at) == (0, 2, model.now)
    (change,) = trial.size_changes
    assert (change.at, change.slots, change.full_slots) == (model.now, 2, 4)
    assert (
        change.reason == "needs 4 slots; the agents that are well, 1 agent of 2 slots, cannot hold it without a2 (away)"
    )


def test_a_machine_that_comes_back_in_time_brings_the_full_size() -> None:
    model = _model()
    model.lose("a2")
    model.exit("1.1.1", "a1", ExitKind.PEER_FAILED)
    _wait(model, SHRINK / 2)
    model.connect("a2", 2)
    _wait(model, 0)
    assert _sizes(model) == {"1.1.2": (4, 0)}
    assert _trial(model).size_changes == ()


def test_a_trial_that_never_ran_waits_for_its_full_size() -> None:
    model = Model()
    model.connect("a1", 2)
    model.submit("elastic", 4, min_slots_per_trial=1)
    _wait(model, 100 * SHRINK)
    assert _sizes(model) == {}
    assert get(model.state, Request, "1.1").shrink_at == 0


def test_a_trial_without_a_minimum_waits() -> None:
    model = Model()
    model.connect("a1", 2)
    model.connect("a2", 2)
    model.submit("rigid", 4)
    _cycle(model)
    model.lose("a2")
    model.exit("1.1.1", "a1", ExitKind.PEER_FAILED)
    _wait(model, 100 * SHRINK)
    assert _sizes(model) == {}


def test_it_grows_back_in_full_without_a_counted_restart() -> None:
    model = _shrunk()
    shrunk_at = model.now
    model.connect("a2", 2)
    _wait(model, 1)
    assert _sizes(model) == {"1.1.2": (2, 4)}, "not before the least time between two changes"
    allocation = get(model.state, Allocation, "1.1.2")
    assert allocation.grow_at == shrunk_at + RESIZE == next_deadline([allocation], [], model.now)
    _wait(model, RESIZE - 1)
    stopping = get(model.state, Allocation, "1.1.2")
    assert (stopping.state, stopping.stop_kind, stopping.grow_slots) == (State.STOPPING, ExitKind.PREEMPTED, 4)
    assert stopping.stop_reason == "starts again on 4 slots, it had 2"
    _end(model, "1.1.2", ExitKind.PREEMPTED)
    assert _sizes(model) == {"1.1.3": (4, 0)}
    trial = _trial(model)
    assert (trial.restarts, trial.infrastructure_failures) == (0, 1), "the lost machine alone is counted"
    assert [(change.slots, change.full_slots) for change in trial.size_changes] == [(2, 4), (4, 4)]


def test_a_new_leader_goes_on_at_every_step() -> None:
    model = _model()
    model.lose("a2")
    model.exit("1.1.1", "a1", ExitKind.PEER_FAILED)
    model.change_leader()
    _wait(model, SHRINK)
    assert _sizes(model) == {"1.1.2": (2, 4)}
    model.change_leader()
    model.connect("a2", 2)
    _wait(model, RESIZE)
    assert get(model.state, Allocation, "1.1.2").grow_slots == 4
    model.change_leader()
    model.submit("behind", 1)
    _cycle(model)
    assert _sizes(model) == {"1.1.2": (2, 4)}, "its slots are kept for it while it stops"
    _end(model, "1.1.2", ExitKind.PREEMPTED)
    assert _sizes(model) == {"1.1.3": (4, 0)}


def test_a_request_ahead_of_it_keeps_it_from_growing() -> None:
    model = _shrunk()
    model.submit("urgent", 4, priority=1)
    model.connect("a2", 2)
    _wait(model, RESIZE)
    assert get(model.state, Allocation, "1.1.2").state is State.RUNNING
    model.submit("small", 2, priority=1)
    _wait(model, 1)
    assert "3.1.1" not in _sizes(model), "the slots are kept for the urgent one, not for growth"


@pytest.mark.parametrize(("not_before_at", "grows"), [(99.0, True), (100.0, True), (100.5, False)])
def test_a_request_whose_cap_is_used_up_keeps_nothing_from_growing_once_its_backoff_is_over(
    not_before_at: float, grows: bool
) -> None:
    """While the back-off lasts, the cap may still come free."""
    wanted = PendingRequest("1.1", "1", "default", 4, priority=50)
    works = (
        Running("1.1.1", "1.1", "1", "default", {"a1": 2}, priority=50, grow_at=1.0, wanted=wanted),
        Running("2.1.1", "2.1", "2", "default", {"a2": 1}),
    )
    agents = (AgentRoom("a1", "default", 4, 2), AgentRoom("a2", "default", 4, 1))
    urgent = PendingRequest("2.2", "2", "default", 2, priority=1, not_before_at=not_before_at)
    snapshot = Snapshot((PoolConfig("default"),), agents, (urgent,), works, {"2": Group("2", max_slots=2)})
    assert [preemption.allocation_id for preemption in plan(snapshot, 100.0).preemptions] == (
        ["1.1.1"] if grows else []
    )


def test_a_request_ahead_of_it_takes_the_slots_that_were_kept_while_it_stops() -> None:
    model = _shrunk()
    model.connect("a2", 2)
    _wait(model, RESIZE)
    assert get(model.state, Allocation, "1.1.2").grow_slots == 4
    model.submit("urgent", 2, priority=1)
    _cycle(model)
    assert _sizes(model) == {"1.1.2": (2, 4), "2.1.1": (2, 0)}
    _end(model, "1.1.2", ExitKind.PREEMPTED)
    assert _sizes(model) == {"1.1.3": (2, 4), "2.1.1": (2, 0)}, "it takes its former size at once"
    stopped_at = _trial(model).resized_at
    _end(model, "2.1.1", ExitKind.COMPLETED)
    _wait(model, RESIZE - 1 - (model.now - stopped_at))
    assert get(model.state, Allocation, "1.1.3").state is State.RUNNING, "an order to grow counts as a change"
    _wait(model, 1)
    assert get(model.state, Allocation, "1.1.3").grow_slots == 4


def test_it_shrinks_again_only_after_the_least_time() -> None:
    model = _shrunk()
    model.connect("a2", 2)
    _wait(model, RESIZE)
    _end(model, "1.1.2", ExitKind.PREEMPTED)
    grown_at = model.now
    model.lose("a2")
    model.exit("1.1.3", "a1", ExitKind.PEER_FAILED)
    _wait(model, SHRINK)
    assert _sizes(model) == {}
    assert get(model.state, Request, "1.1").shrink_at == grown_at + RESIZE
    _wait(model, RESIZE - SHRINK)
    assert _sizes(model) == {"1.1.4": (2, 4)}


def test_a_smaller_attempt_that_fails_takes_its_size_again_at_once() -> None:
    model = _shrunk()
    _end(model, "1.1.2", ExitKind.RUNNER_LOST)
    _wait(model, get(model.state, Request, "1.1").not_before_at - model.now)
    assert _sizes(model) == {"1.1.3": (2, 4)}
    assert len(_trial(model).size_changes) == 1


def test_busy_slots_that_are_expected_soon_are_waited_for() -> None:
    """2.1 holds a2's slots from then on; first for a short time, then for long."""
    model = _model()
    model.change_agent("a2", Availability.DISABLED)
    _end(model, "1.1.1", ExitKind.PREEMPTED)
    model.change_agent("a2", Availability.ENABLED)
    model.submit("urgent", 2, priority=1)
    model.place(next(assignment for assignment in model.plan().assignments if assignment.trial_id == "2.1"))
    _start(model)
    _wait(model, SHRINK)
    assert list(_sizes(model)) == ["2.1.1"], "it has run for as long as it is expected to run on"
    assert model.plan().look_at is not None
    _wait(model, SHRINK)
    assert _sizes(model)["1.1.2"] == (2, 4)
    assert get(model.state, Allocation, "1.1.2").shrink_reason == (
        "needs 4 slots, and these are neither free nor expected within 60 s"
    )


def test_a_paused_trial_neither_shrinks_nor_grows() -> None:
    model = _model()
    model.leader.commit(lambda records: pause_experiment(records, 1, "paused by ann", RULES, model.now))
    _end(model, "1.1.1", ExitKind.PREEMPTED)
    model.lose("a2")
    _wait(model, 10 * SHRINK)
    assert _sizes(model) == {}


def test_the_time_of_a_pause_is_no_wait_for_the_full_size() -> None:
    model = _model()
    model.leader.commit(lambda records: pause_experiment(records, 1, "paused by ann", RULES, model.now))
    _end(model, "1.1.1", ExitKind.PREEMPTED)
    model.lose("a2")
    _wait(model, 10 * SHRINK)
    model.leader.commit(lambda records: activate_experiment(records, 1, RULES, model.now))
    _wait(model, SHRINK - 1)
    assert _sizes(model) == {}
    _wait(model, 1)
    assert _sizes(model) == {"1.1.2": (2, 4)}


def test_the_pace_of_a_smaller_attempt_counts_as_that_of_the_full_size() -> None:
    """On two slots of four a batch takes two seconds, so it takes one on all of them."""
    model = _shrunk()
    model.leader.commit(lambda records: progressed(records, "1.1", Progress(10, 100, 2.0, model.now), RULES, model.now))
    assert _trial(model).seconds_per_batch == 1.0
    estimates = Estimates(model.state, {})
    assert estimates.waiting_seconds("1.1") == 100
    (allocation,) = model.allocations()
    assert estimates.end_at(allocation) == allocation.created_at + 200


def test_caps_count_the_slots_that_are_held() -> None:
    """Two trials of four slots do not fit below a cap of six; one of them on two slots leaves room for the other."""
    model = _shrunk()
    model.update_resources(1, max_slots=4)
    assert _sizes(model) == {"1.1.2": (2, 4)}
    (work,) = model.snapshot().running
    assert work.slots == 2
    assert work.wanted is not None
    assert work.wanted.slots == 4


def test_an_order_to_grow_that_comes_late_changes_nothing() -> None:
    model = _shrunk()
    model.pass_time(RESIZE)
    model.exit("1.1.2", "a1", ExitKind.COMPLETED)
    assert not model.grow("1.1.2")
    assert _trial(model).state is State.TERMINAL


def test_a_placement_checks_the_size_once_more() -> None:
    model = _model()
    model.lose("a2")
    model.exit("1.1.1", "a1", ExitKind.PEER_FAILED)
    request = get(model.state, Request, "1.1")
    settled = settled_of(get(model.state, Experiment, 1).config_json)
    assert [may_have(request, slots, settled, model.now) for slots in (4, 2, 1)] == [True, False, False]
    later = request.shrink_at
    assert [may_have(request, slots, settled, later) for slots in (4, 3, 2, 1)] == [True, False, True, True]
