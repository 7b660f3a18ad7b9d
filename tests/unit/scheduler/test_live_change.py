"""Priority, weight, max_slots and the order of the queue change while experiments live."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.domain.allocation import Request
from gangline.domain.experiment import Experiment
from gangline.domain.state import ReasonCode, State
from gangline.errors import ErrorKind, GanglineError
from services.scheduler.placement import PoolConfig
from services.scheduler.state.records import get
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.end import kill_experiment, pause_experiment
from services.scheduler.transition.queue_move import MAX_MOVED_APART, find_position, position_of
from tests.support.scheduler_model import RULES, Model

POOLS = (
    PoolConfig("default", is_preemption_on=True),
    PoolConfig("lab"),
    PoolConfig("shared", policy="fair_share"),
)


def _queue(count: int, max_slots: int | None = None) -> Model:
    """So many experiments that wait for one slot each, submitted a second apart; nothing can start."""
    model = Model(POOLS)
    for number in range(count):
        model.submit(f"r{number}", max_slots=max_slots)
        model.now += 1
    return model


def _order(model: Model) -> list[str]:
    return list(model.plan().reasons)


def _experiment(model: Model, experiment_id: int) -> Experiment:
    return get(model.state, Experiment, experiment_id)


def _refusal(model: Model, experiment_id: int, **fields: float) -> str:
    with pytest.raises(GanglineError) as caught:
        model.update_resources(experiment_id, **fields)
    assert caught.value.kind is ErrorKind.INVALID
    return f"{caught.value.code}: {caught.value.message}"


def test_a_priority_counts_at_once_in_queue_request_and_configuration() -> None:
    model = _queue(3)
    model.update_resources(3, priority=7)
    assert _order(model) == ["3.1", "1.1", "2.1"]
    assert get(model.state, Request, "3.1").priority == 7
    resources = json.loads(_experiment(model, 3).config_json)["resources"]
    assert (resources["priority"], resources["slots_per_trial"]) == (7, 1)
    assert not model.update_resources(3, priority=7)


def test_a_priority_counts_for_running_work_and_makes_preemption_possible() -> None:
    model = Model(POOLS)
    model.connect("a1", 1)
    model.submit("runs")
    model.cycle()
    model.submit("waits")
    assert not model.plan().preemptions
    model.update_resources(1, priority=80)
    assert model.snapshot().running[0].priority == 80
    [preemption] = model.plan().preemptions
    assert (preemption.allocation_id, preemption.for_trial_id) == ("1.1.1", "2.1")


def test_a_lower_max_slots_stops_nothing_and_starts_nothing() -> None:
    model = Model(POOLS)
    model.connect("a1", 4)
    model.submit("r", 2)
    model.cycle()
    assert model.update_resources(1, max_slots=2)
    model.update_resources(1, max_slots=2, weight=3)
    [allocation] = model.allocations()
    assert allocation.state is State.STARTING
    settled = settled_of(_experiment(model, 1).config_json)
    assert (settled.resources.max_slots, settled.resources.weight) == (2, 3.0)
    [group] = model.snapshot().groups.values()
    assert (group.id, group.max_slots, group.weight) == ("experiment 1", 2, 3.0)
    model.update_resources(1, max_slots=0)
    assert settled_of(_experiment(model, 1).config_json).resources.max_slots is None


def test_a_weight_of_nothing_is_one() -> None:
    model = _queue(1)
    model.update_resources(1, weight=0)
    assert settled_of(_experiment(model, 1).config_json).resources.weight == 0


def test_bad_values_are_named() -> None:
    model = _queue(1, max_slots=4)
    assert _refusal(model, 1, priority=0) == (
        "resources.priority: priority 0 is out of range; give 1 (most urgent) to 99"
    )
    assert _refusal(model, 1, priority=100).startswith("resources.priority: priority 100")
    assert _refusal(model, 1, weight=-0.5) == "resources.weight: weight -0.5 is out of range; give 0 or more"
    assert _refusal(model, 1, weight=float("nan")).startswith("resources.weight: weight nan")
    assert _refusal(model, 1, max_slots=-1).startswith("resources.max_slots: max_slots -1")
    assert _refusal(model, 1) == ("resources.nothing: nothing is to be changed; give a priority, a weight or max_slots")
    model.submit("gang", 4)
    assert _refusal(model, 2, max_slots=3) == (
        "resources.max_slots: max_slots 3 is below the 4 slots of one trial of experiment 2, so none could start any "
        "more; give at least 4, or 0 for no cap"
    )


def test_what_has_ended_is_not_changed() -> None:
    model = _queue(2)
    model.leader.commit(lambda records: kill_experiment(records, 1, "killed by ann", RULES, model.now))
    with pytest.raises(GanglineError, match="so it cannot be changed"):
        model.update_resources(1, priority=3)
    with pytest.raises(GanglineError, match="so it cannot be moved"):
        model.move(1, 2)
    with pytest.raises(GanglineError) as caught:
        model.move(2, 1)
    assert (caught.value.code, caught.value.kind) == ("experiment.ended", ErrorKind.CONFLICT)
    assert caught.value.message == ("experiment 1 has ended (CANCELED), so it cannot be the anchor of a move")
    with pytest.raises(GanglineError, match="there is no experiment 9"):
        model.update_resources(9, priority=3)


def test_moves_write_one_record_and_take_effect() -> None:
    model = _queue(4)
    change = model.move(4, 2)
    assert [type(record) for record in change.puts] == [Experiment]
    assert _order(model) == ["1.1", "4.1", "2.1", "3.1"]
    assert not model.move(4, 2)
    model.move(1, 2, is_behind=True)
    assert _order(model) == ["4.1", "2.1", "1.1", "3.1"]
    model.move(4, 3, is_behind=True)
    assert _order(model) == ["2.1", "1.1", "3.1", "4.1"]
    model.move(3, 2)
    assert _order(model) == ["3.1", "2.1", "1.1", "4.1"]
    late = model.submit("late")
    assert _order(model)[-1] == f"{late}.1", "what is submitted later comes after who was moved to the end"


def test_a_move_takes_the_other_ones_priority() -> None:
    model = _queue(2)
    model.submit("urgent", priority=5)
    model.move(1, 3, is_behind=True)
    assert _order(model) == ["3.1", "1.1", "2.1"]
    assert get(model.state, Request, "1.1").priority == 5
    model.move(3, 2)
    assert settled_of(_experiment(model, 3).config_json).resources.priority == 42
    assert _order(model) == ["1.1", "3.1", "2.1"]


def test_moves_that_make_no_sense_are_named() -> None:
    model = _queue(1)
    model.submit("lab", resource_pool="lab")
    model.submit("shared", resource_pool="shared")
    model.submit("shared too", resource_pool="shared")
    refusals = []
    for experiment_id, anchor_id in ((1, 2), (1, 1), (3, 4), (1, 9)):
        with pytest.raises(GanglineError) as caught:
            model.move(experiment_id, anchor_id)
        refusals.append(f"{caught.value.code}: {caught.value.message}")
    assert refusals == [
        "queue.other_pool: experiment 1 is in pool 'default' and experiment 2 in pool 'lab'; each pool has a queue of "
        "its own, so name one of the same pool",
        "queue.same: experiment 1 cannot be moved relative to itself; name another one",
        "queue.no_order: pool 'shared' gives slots by shares (fair_share), so its queue has no order; change the "
        "weight instead",
        "experiment.not_found: there is no experiment 9; list them with: gangline experiment list",
    ]


def test_experiments_of_the_same_instant_can_be_moved_between() -> None:
    model = Model(POOLS)
    for number in range(10):
        model.submit(f"r{number}")
    model.move(10, 5)
    assert _order(model) == [f"{number}.1" for number in (1, 2, 3, 4, 10, 5, 6, 7, 8, 9)]
    model.move(1, 9, is_behind=True)
    assert _order(model) == [f"{number}.1" for number in (2, 3, 4, 10, 5, 6, 7, 8, 9, 1)]


def test_the_same_gap_can_be_halved_for_ever() -> None:
    """Each move goes directly ahead of the last experiment, and few records are written for it."""
    model = _queue(6)
    written = []
    for turn in range(200):
        mover = turn % 5 + 1
        written.append(model.move(mover, 6).num_operations)
        assert _order(model)[-2:] == [f"{mover}.1", "6.1"]
    assert max(written) <= 6
    assert written.count(1) > 150


@given(
    positions=st.lists(st.sampled_from([1.0, 1.0 + 2**-52, 2.0, 1.7e9]), min_size=1, max_size=8).map(sorted),
    index=st.integers(0, 8),
    now=st.sampled_from([0.0, 1.7e9, 1.8e9]),
)
def test_a_position_is_found_between_any_two(positions: list[float], index: int, now: float) -> None:
    index = min(index, len(positions))
    position, apart = find_position(positions, index, now)
    after = [*positions[: index - len(apart)], *apart, position, *positions[index:]]
    changed = range(index - len(apart), index + 1)
    assert after == sorted(after)
    for number, (earlier, other) in enumerate(pairwise(after)):
        assert earlier < other or (number not in changed and number + 1 not in changed)


def test_a_queue_without_any_gap_says_so() -> None:
    with pytest.raises(GanglineError) as caught:
        find_position([1.0] * (2 * MAX_MOVED_APART), MAX_MOVED_APART + 5, 1.0)
    assert (caught.value.code, caught.value.kind) == ("queue.too_narrow", ErrorKind.CONFLICT)


def test_a_paused_experiment_is_moved_and_changed_too() -> None:
    model = _queue(2)
    model.leader.commit(lambda records: pause_experiment(records, 2, "paused by ann", RULES, model.now))
    model.move(2, 1)
    assert position_of(_experiment(model, 2)) < position_of(_experiment(model, 1))
    model.update_resources(2, priority=9)
    [first, _] = sorted(model.snapshot().requests, key=lambda request: request.priority)
    assert (first.trial_id, first.hold) == ("2.1", ReasonCode.PAUSED)
