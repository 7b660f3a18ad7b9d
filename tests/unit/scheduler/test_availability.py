"""An operator's settings of agents and slots, and their effect on the work there."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.domain.allocation import Allocation, Request
from gangline.domain.experiment import Trial
from gangline.domain.resource import Agent
from gangline.domain.state import Availability, ExitKind, ReasonCode, State
from gangline.errors import ErrorKind, GanglineError
from services.scheduler.placement import Assignment
from services.scheduler.state.records import get
from services.scheduler.transition.availability import MAX_CLEARED
from tests.support.scheduler_model import RULES, Model

TIMEOUT_SECONDS = 3600


def _model(**slots: int) -> Model:
    model = Model()
    for agent_id, count in slots.items():
        model.connect(agent_id, count)
    return model


def _running(model: Model, *sizes: int) -> list[Allocation]:
    for number, size in enumerate(sizes):
        model.submit(f"r{number}", size)
        model.now += 1
    model.cycle()
    return model.allocations()


def _allocation(model: Model, allocation_id: str) -> Allocation:
    return get(model.state, Allocation, allocation_id)


def _room(model: Model, agent_id: str) -> Any:
    return next(room for room in model.snapshot().agents if room.id == agent_id)


def test_draining_lets_work_finish_and_takes_nothing_new() -> None:
    model = _model(a1=2)
    [allocation] = _running(model, 1)
    model.change_agent("a1", Availability.DRAINING)
    assert _allocation(model, allocation.id).state is State.STARTING
    room = _room(model, "a1")
    assert (room.is_usable, room.problem) == (False, "drained by an administrator")
    second = model.submit("second", 1)
    reason = model.cycle().reasons[f"{second}.1"]
    assert reason.code is ReasonCode.AGENTS_DISABLED
    assert reason.message == (
        "needs 1 slot; a1 is being drained by an administrator; enable it with: gangline agent enable a1"
    )
    assert not model.place(Assignment(f"{second}.1", {"a1": 1})), "a plan from before cannot break it either"
    model.exit(allocation.id, "a1", ExitKind.COMPLETED)
    assert not model.cycle().assignments
    model.change_agent("a1", Availability.ENABLED)
    assert len(model.cycle().assignments) == 1


def test_a_draining_slot_counts_as_nothing_once_its_work_has_ended() -> None:
    model = _model(a1=3)
    [allocation] = _running(model, 1)
    [held] = allocation.members[0].slot_ids
    model.change_agent("a1", Availability.DRAINING, held, "a1/2")
    room = _room(model, "a1")
    assert (room.slots, room.used, room.draining, room.disabled, room.is_usable) == (1, 0, 1, 2, True)
    [work] = model.snapshot().running
    assert dict(work.draining_by_agent) == {"a1": 1}
    model.exit(allocation.id, "a1", ExitKind.COMPLETED)
    room = _room(model, "a1")
    assert (room.slots, room.used, room.draining, room.disabled) == (1, 0, 0, 2)


def test_disabling_an_agent_has_its_work_checkpoint_and_wait_again() -> None:
    model = _model(a1=2, a2=2)
    [gang] = _running(model, 4, 1)
    model.change_agent("a2", Availability.DISABLED)
    stopping = _allocation(model, gang.id)
    assert (stopping.state, stopping.stop_kind) == (State.STOPPING, ExitKind.PREEMPTED)
    assert stopping.stop_reason == "agent a2 is disabled"
    assert stopping.deadline_at == model.now + TIMEOUT_SECONDS + RULES.force_seconds
    for agent_id in ("a1", "a2"):
        model.exit(gang.id, agent_id, ExitKind.PREEMPTED)
    trial = get(model.state, Trial, "1.1")
    assert (trial.state, trial.restarts, trial.infrastructure_failures) == (State.QUEUED, 0, 0)
    assert trial.reason == "agent a2 is disabled"
    assert get(model.state, Request, "1.1").not_before_at == 0
    # The small one fits beside it, the gang waits for the agent.
    assert [assignment.trial_id for assignment in model.cycle().assignments] == ["2.1"]
    model.change_agent("a2", Availability.ENABLED)
    model.exit("2.1.1", "a1", ExitKind.COMPLETED)
    assert [assignment.trial_id for assignment in model.cycle().assignments] == ["1.1"]


def test_disabling_one_slot_stops_only_what_holds_it() -> None:
    model = _model(a1=2)
    first, second = _running(model, 1, 1)
    [held] = second.members[0].slot_ids
    model.change_agent("a1", Availability.DISABLED, held)
    assert _allocation(model, first.id).state is State.STARTING
    stopping = _allocation(model, second.id)
    assert (stopping.stop_kind, stopping.stop_reason) == (ExitKind.PREEMPTED, f"slot {held} is disabled")
    model.exit(second.id, "a1", ExitKind.PREEMPTED)
    assert not model.cycle().assignments
    assert get(model.state, Trial, second.trial_id).restarts == 0


def test_draining_after_disabling_does_not_stop_a_second_time() -> None:
    model = _model(a1=1)
    [allocation] = _running(model, 1)
    model.change_agent("a1", Availability.DISABLED)
    before = _allocation(model, allocation.id)
    model.now += 5
    model.change_agent("a1", Availability.DRAINING)
    assert _allocation(model, allocation.id) == before
    assert not model.change_agent("a1", Availability.DRAINING)


def test_a_hello_keeps_what_operators_said_and_counts_for_nothing_itself() -> None:
    model = _model(a1=2)
    model.change_agent("a1", Availability.DRAINING)
    model.change_agent("a1", Availability.DISABLED, "a1/1")
    model.lose("a1")
    model.connect("a1", 3)
    agent = get(model.state, Agent, "a1")
    assert agent.availability is Availability.DRAINING
    assert [slot.availability for slot in agent.slots] == [
        Availability.ENABLED,
        Availability.DISABLED,
        Availability.ENABLED,
    ]
    model.sicken("a1", 0)
    agent = get(model.state, Agent, "a1")
    assert [slot.is_open for slot in agent.slots] == [False, False, True]
    assert agent.availability is Availability.DRAINING


def test_slots_that_fall_ill_keep_their_work_and_take_no_more() -> None:
    model = _model(a1=1)
    [allocation] = _running(model, 1)
    model.sicken("a1", 0)
    assert _allocation(model, allocation.id).state is State.STARTING
    room = _room(model, "a1")
    assert (room.slots, room.draining, room.disabled) == (0, 1, 1)


@pytest.mark.parametrize("is_told_on_stream", [False, True])
def test_a_disabled_slot_that_vanishes_comes_back_disabled(is_told_on_stream: bool) -> None:
    model = _model(a1=2)
    model.change_agent("a1", Availability.DISABLED, "a1/1")
    for slot_id in ("a1/0", "a1/1"):
        model.lose_slot("a1", slot_id, is_told_on_stream)
    [absent] = get(model.state, Agent, "a1").known_slots
    assert (absent.id, absent.availability, absent.is_healthy) == ("a1/1", Availability.DISABLED, False)
    model.change_leader()
    model.connect("a1", 2)
    agent = get(model.state, Agent, "a1")
    assert [slot.availability for slot in agent.slots] == [Availability.ENABLED, Availability.DISABLED]
    assert agent.slots[1].is_healthy
    assert agent.absent_slots == ()


def test_a_word_on_a_slot_can_be_taken_back_while_the_slot_is_away() -> None:
    model = _model(a1=2)
    model.change_agent("a1", Availability.DRAINING, "a1/1")
    model.connect("a1", 1)
    model.change_agent("a1", Availability.DISABLED, "a1/1")
    assert get(model.state, Agent, "a1").absent_slots[0].availability is Availability.DISABLED
    model.change_agent("a1", Availability.ENABLED, "a1/1")
    model.connect("a1", 1)
    assert get(model.state, Agent, "a1").known_slots == get(model.state, Agent, "a1").slots
    model.connect("a1", 2)
    assert [slot.availability for slot in get(model.state, Agent, "a1").slots] == [Availability.ENABLED] * 2


@pytest.mark.parametrize("is_told_on_stream", [False, True])
def test_an_agent_with_fewer_slots_than_its_work_holds(is_told_on_stream: bool) -> None:
    model = _model(a1=4)
    [allocation] = _running(model, 4)
    for slot_id in ("a1/2", "a1/3"):
        model.lose_slot("a1", slot_id, is_told_on_stream)
    stopping = _allocation(model, allocation.id)
    assert (stopping.state, stopping.stop_kind) == (State.STOPPING, ExitKind.KILLED)
    assert stopping.stop_reason == "agent a1: no longer has slot a1/2, held by trial 1.1, attempt 1"
    assert stopping.deadline_at == model.now + RULES.kill_grace_seconds + RULES.force_seconds
    room = _room(model, "a1")
    assert (room.slots, room.used, room.draining, room.disabled) == (2, 2, 2, 2)
    model.exit(allocation.id, "a1", ExitKind.KILLED)
    trial = get(model.state, Trial, "1.1")
    assert (trial.state, trial.restarts, trial.infrastructure_failures) == (State.QUEUED, 0, 1)
    assert trial.reason == "agent a1: no longer has slot a1/2, held by trial 1.1, attempt 1"
    assert trial.last_failure is not None
    assert trial.last_failure.kind is ExitKind.AGENT_LOST
    model.now += 60
    reason = model.cycle().reasons["1.1"]
    assert reason.code is ReasonCode.NEVER_FITS
    assert "4 can never fit pool 'default' (1 agent of 2 slots)" in reason.message


def test_several_slots_that_are_gone_at_once_stand_in_one_line() -> None:
    model = _model(a1=4)
    _running(model, 4)
    model.connect("a1", 2)
    [allocation] = model.allocations()
    assert allocation.stop_reason == "agent a1: no longer has slots a1/2, a1/3, held by trial 1.1, attempt 1"


def test_what_does_not_fit_into_one_transaction_is_stopped_in_the_next() -> None:
    count = 2 * MAX_CLEARED + 1
    model = _model(a1=count)
    assert len(_running(model, *[1] * count)) == count
    model.change_agent("a1", Availability.DISABLED)
    assert sum(allocation.state is State.STOPPING for allocation in model.allocations()) == MAX_CLEARED
    model.change_leader()
    model.continue_change()
    assert all(allocation.state is State.STOPPING for allocation in model.allocations())


def test_an_unknown_agent_is_told_with_those_that_there_are() -> None:
    model = _model(a2=1, a10=1)
    with pytest.raises(GanglineError) as caught:
        model.change_agent("a3", Availability.DRAINING)
    assert (caught.value.code, caught.value.kind) == ("agent.not_found", ErrorKind.NOT_FOUND)
    assert caught.value.message == "there is no agent 'a3'; did you mean 'a2'? the agents are a2, a10"
    with pytest.raises(GanglineError, match="there is no agent 'a1'; there are no agents yet"):
        Model().change_agent("a1", Availability.DRAINING)


def test_an_unknown_slot_is_told_with_those_of_the_agent() -> None:
    model = _model(a1=2)
    with pytest.raises(GanglineError) as caught:
        model.change_agent("a1", Availability.DISABLED, "a1/0", "a1/7")
    assert (caught.value.code, caught.value.kind) == ("slot.not_found", ErrorKind.NOT_FOUND)
    assert caught.value.message == ("agent a1 has no slot 'a1/7'; did you mean 'a1/1'? the slots are a1/0, a1/1")
    assert get(model.state, Agent, "a1").slots[0].availability is Availability.ENABLED
