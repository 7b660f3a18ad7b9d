"""Work on call in the leader's state: who is marked, who is stopped for whom, and what no change of a queue may do."""

from __future__ import annotations

from gangline.domain.allocation import Allocation, Request
from gangline.domain.experiment import Trial
from gangline.domain.state import ExitKind
from services.scheduler.placement import PoolConfig
from services.scheduler.state.records import get
from services.scheduler.transition.end import activate_experiment, pause_experiment
from tests.support.scheduler_model import RULES, Model

POOLS = (PoolConfig("default", is_preemption_on=True, backfill="on_call"),)


def _model() -> Model:
    """1.1 runs on one of two slots, the gang 2.1 waits for both, and 3.1 has passed it."""
    model = Model(POOLS)
    model.connect("a1", 2)
    for number, slots in enumerate((1, 2, 1), 1):
        model.submit(f"r{number}", slots)
        model.now += 10
        model.cycle()
    return model


def _live(model: Model) -> dict[str, bool]:
    """By allocation, whether it is on call."""
    return {allocation.id: allocation.is_on_call for allocation in model.state.all_of(Allocation)}


def test_who_passes_is_marked_stopped_for_the_holder_and_back_at_its_place() -> None:
    model = _model()
    assert _live(model) == {"1.1.1": False, "3.1.1": True}
    model.submit("r4", 1)
    assert model.cycle().preemptions == ()
    model.exit("1.1.1", "a1", ExitKind.COMPLETED)
    decided = model.cycle()
    assert [(preemption.allocation_id, preemption.for_trial_id) for preemption in decided.preemptions] == [
        ("3.1.1", "2.1")
    ]
    assert decided.assignments == (), "what is free already is kept for the holder"
    model.exit("3.1.1", "a1", ExitKind.PREEMPTED)
    model.cycle()
    assert _live(model) == {"2.1.1": False}
    trial = get(model.state, Trial, "3.1")
    assert (trial.restarts, trial.infrastructure_failures) == (0, 0)
    model.exit("2.1.1", "a1", ExitKind.COMPLETED)
    model.cycle()
    assert _live(model) == {"3.1.2": False, "4.1.1": False}


def test_who_started_in_its_turn_is_stopped_by_no_equal() -> None:
    """Not by one that is moved ahead of it, made as urgent, or paused and activated."""
    model = Model(POOLS)
    model.connect("a1", 2)
    model.submit("held", 2)
    model.submit("late", 2, priority=50)
    model.leader.commit(lambda records: pause_experiment(records, 1, "paused by ann", RULES, model.now))
    model.submit("own", 2)
    model.cycle()
    assert _live(model) == {"3.1.1": False}
    model.leader.commit(lambda records: activate_experiment(records, 1, RULES, model.now))
    model.move(2, 3)
    assert model.cycle().preemptions == ()
    assert [request.trial_id for request in model.state.all_of(Request)] == ["1.1", "2.1"]
    assert _live(model) == {"3.1.1": False}


def test_what_is_dumped_goes_by_the_mark_under_any_leader() -> None:
    model = _model()
    before = {work.allocation_id: work for work in model.snapshot().running}
    assert (before["3.1.1"].is_on_call, before["3.1.1"].submitted_at) == (True, 1020.0)
    assert before["3.1.1"].queue_position == 1020.0
    model.exit("1.1.1", "a1", ExitKind.COMPLETED)
    model.change_leader()
    assert [preemption.allocation_id for preemption in model.cycle().preemptions] == ["3.1.1"]
