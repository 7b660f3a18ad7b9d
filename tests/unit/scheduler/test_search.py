"""Searches, and what users do to experiments and trials, one thing at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gangline.config.searcher import SEARCHER_ROWS
from gangline.domain.allocation import Allocation, Request
from gangline.domain.experiment import Checkpoint, ResourceChange
from gangline.domain.history import MetricsPoint
from gangline.domain.search import Search, SearchEvent, SearchLog
from gangline.domain.state import ExitKind, Outcome, ReasonCode, SearchEventKind, State
from gangline.errors import GanglineError
from services.scheduler.searcher import replay as replay_module
from services.scheduler.searcher.interface import Brief, CloseTrial, CreateTrial, Operation, ShutDown
from services.scheduler.searcher.methods import SEARCHERS
from services.scheduler.state.estimate import Progress
from services.scheduler.state.hold import held_reason
from services.scheduler.state.records import Records, SchedulerState, StateChange, get
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.end import (
    MAX_TRIALS,
    activate_experiment,
    cancel_experiment,
    continue_change,
    kill_experiment,
    kill_trial,
    pause_experiment,
)
from services.scheduler.transition.fence import fenced
from services.scheduler.transition.queue_move import update_resources
from services.scheduler.transition.report import checkpointed, progressed, validated
from services.scheduler.transition.search import MAX_CREATED, MAX_DRAWS
from tests.support.search_world import RULES, SearchWorld, config_of

RANDOM = {"name": "random", "max_trials": 3, "max_concurrent_trials": 2}


def _world(**fields: object) -> SearchWorld:
    return SearchWorld(config_of(RANDOM, **fields))


def test_a_closed_trial_makes_room_for_the_next_and_the_last_ends_the_experiment() -> None:
    world = _world()
    assert [trial.id for trial in world.trials] == ["1.1", "1.2"]
    assert world.place() == ["1.1", "1.2"]
    world.exit("1.2", ExitKind.COMPLETED)
    assert world.place() == ["1.3"]
    assert world.experiment.state is State.STARTING
    for trial_id in ("1.1", "1.3"):
        world.exit(trial_id, ExitKind.COMPLETED)
    assert (world.experiment.outcome, world.experiment.reason) == (Outcome.COMPLETED, "all 3 trials completed")
    assert world.search.is_shut_down


@pytest.mark.parametrize(
    ("ranges", "num_made"),
    [
        ({f"h{number}": {"type": "double", "minval": 0.0, "maxval": 1.0} for number in range(200)}, MAX_DRAWS // 200),
        ({"h": {"type": "categorical", "vals": list(range(10_000))}}, MAX_DRAWS // 101),
        ({"h": {"type": "categorical", "vals": list(range(100))}}, MAX_CREATED),
    ],
    ids=["ranges", "choices", "few"],
)
def test_one_transaction_draws_no_more_than_a_leader_has_time_for(ranges: dict[str, Any], num_made: int) -> None:
    search = {"name": "random", "max_trials": 100, "max_concurrent_trials": 0}
    world = SearchWorld(config_of(search, hyperparameters=ranges))
    assert len(world.trials) == num_made
    world.continue_change()
    assert len(world.trials) == 100


def test_trials_differ_and_say_so() -> None:
    points = [json.loads(trial.hyperparameters_json) for trial in _world().trials]
    assert points[0]["lr"] != points[1]["lr"]
    assert [point["net"] for point in points] == [{"depth": 3}] * 2
    seeds = [trial.seed for trial in _world().trials]
    assert seeds[0] == 7
    assert seeds[1] != 7


def test_a_failed_trial_does_not_end_the_others() -> None:
    world = _world()
    world.place()
    world.exit("1.1", ExitKind.USER_ERROR)
    assert world.trials[0].outcome is Outcome.FAILED
    assert world.place() == ["1.3"]
    for trial_id in ("1.2", "1.3"):
        world.exit(trial_id, ExitKind.COMPLETED)
    assert world.experiment.outcome is Outcome.COMPLETED
    assert world.experiment.reason == "2 of 3 trials completed; trial 1.1 failed: agent a1: as told"


def test_each_trial_has_its_own_restarts() -> None:
    world = _world(max_restarts=1)
    world.place()
    world.exit("1.1", ExitKind.USER_ERROR)
    world.now += 60
    assert world.place() == ["1.1"]
    world.exit("1.1", ExitKind.USER_ERROR)
    assert [trial.restarts for trial in world.trials] == [1, 0, 0]
    assert world.trials[0].outcome is Outcome.FAILED


def test_when_all_fail_the_experiment_has_failed() -> None:
    world = _world()
    for trial_id in ("1.1", "1.2", "1.3"):
        world.place()
        world.exit(trial_id, ExitKind.OUT_OF_MEMORY)
    assert world.experiment.outcome is Outcome.FAILED
    assert world.experiment.reason.startswith("trial 1.1 failed: ")


def test_more_trials_than_a_transaction_takes_come_one_after_another() -> None:
    world = SearchWorld(config_of({"name": "random", "max_trials": 150, "max_concurrent_trials": 0}))
    assert (len(world.trials), world.search.num_wanted) == (32, 150)
    world.change_leader()
    world.continue_change()
    assert [trial.number for trial in world.trials] == list(range(1, 151))
    world.apply(kill_experiment(world.records, 1, "killed by ann", RULES, world.now))
    assert world.experiment.state is State.STOPPING
    world.change_leader()
    world.continue_change()
    assert world.experiment.outcome is Outcome.CANCELED
    assert {trial.outcome for trial in world.trials} == {Outcome.CANCELED}


def test_the_log_goes_on_on_the_next_page() -> None:
    world = SearchWorld(config_of({"name": "random", "max_trials": 70, "max_concurrent_trials": 1}))
    for number in range(1, 71):
        world.place()
        world.exit(f"1.{number}", ExitKind.COMPLETED)
    assert world.experiment.outcome is Outcome.COMPLETED
    pages = sorted(world.records.all_of(SearchLog), key=lambda log: log.page)
    assert [len(page.events) for page in pages] == [64, 7]
    assert [event.trial_number for page in pages for event in page.events] == list(range(71))


def test_what_is_being_ended_starts_nothing_more() -> None:
    """More trials than one transaction ends: those whose turn comes later must not start before it."""
    world = SearchWorld(config_of({"name": "random", "max_trials": 50, "max_concurrent_trials": 0}))
    world.continue_change()
    assert len(world.trials) == 50
    world.apply(cancel_experiment(world.records, 1, "canceled by ann", RULES, world.now))
    left = list(world.records.all_of(Request))
    assert len(left) == 50 - MAX_TRIALS
    assert not world.place()
    assert not world.try_to_place(left[0].trial_id)
    told = held_reason(world.experiment, world.plan().reasons[left[0].trial_id], ())
    assert told.message == "experiment 1 is being ended: canceled by ann"
    world.continue_change()
    assert world.experiment.outcome is Outcome.CANCELED


def test_max_slots_holds_requests_and_says_why() -> None:
    world = SearchWorld(
        config_of({"name": "random", "max_trials": 9}, resources={"slots_per_trial": 2, "max_slots": 5})
    )
    assert world.place() == ["1.1", "1.2"]
    assert not world.try_to_place("1.3"), "a plan from before cannot break it either"
    reasons = world.plan().reasons
    assert len(reasons) == 7
    reason = reasons["1.3"]
    assert reason.code is ReasonCode.QUOTA_EXCEEDED
    assert reason.message == "needs 2 slots; experiment 1 holds or was promised 4 of its max_slots 5"
    assert reason.would_start_if == "max_slots of experiment 1 is raised to 6"
    assert reason.blocking_ids == ("1.1.1", "1.2.1")
    world.exit("1.1", ExitKind.COMPLETED)
    assert world.place() == ["1.3"]


def _lower(world: SearchWorld, max_slots: int, when_free: bool = False) -> StateChange:
    change = ResourceChange(max_slots=max_slots, when_free=when_free)
    return world.apply(update_resources(world.records, 1, change, rules=RULES, now=world.now))


def _stopping(world: SearchWorld) -> list[str]:
    live = world.records.all_of(Allocation)
    return sorted(allocation.trial_id for allocation in live if allocation.state is State.STOPPING)


def test_a_lower_max_slots_has_the_newest_trials_give_back_their_slots() -> None:
    world = SearchWorld(config_of({"name": "random", "max_trials": 4}, preemption_timeout=600))
    world.place()
    world.run("1.4")
    _lower(world, 2)
    assert _stopping(world) == ["1.3", "1.4"]
    allocation = world.live("1.4")
    assert (allocation.stop_kind, allocation.stop_reason) == (
        ExitKind.PREEMPTED,
        "max_slots of its experiment is 2 now",
    )
    assert allocation.deadline_at == world.now + 600 + RULES.force_seconds
    # Once is enough: what stops already counts as gone.
    assert not _lower(world, 2)
    world.continue_change()
    assert _stopping(world) == ["1.3", "1.4"]
    for trial_id in ("1.3", "1.4"):
        world.exit(trial_id, ExitKind.PREEMPTED)
    assert world.place() == []
    trial = world.trials[3]
    assert (trial.state, trial.restarts, trial.reason) == (State.QUEUED, 0, "max_slots of its experiment is 2 now")
    assert {reason.code for reason in world.plan().reasons.values()} == {ReasonCode.QUOTA_EXCEEDED}
    world.exit("1.1", ExitKind.COMPLETED)
    assert world.place() == ["1.3"]


def test_a_lower_max_slots_when_free_stops_nothing() -> None:
    world = SearchWorld(config_of({"name": "random", "max_trials": 4}))
    world.place()
    _lower(world, 2, when_free=True)
    world.continue_change()
    assert _stopping(world) == []
    world.exit("1.1", ExitKind.COMPLETED)
    world.exit("1.2", ExitKind.COMPLETED)
    # The same cap again, now to be kept at once; and a later word for when they are free stops no more.
    _lower(world, 1)
    assert _stopping(world) == ["1.4"]
    _lower(world, 3, when_free=True)
    assert not world.experiment.gives_back


def test_more_slots_than_a_transaction_gives_back_come_one_after_another() -> None:
    world = SearchWorld(config_of({"name": "random", "max_trials": 60, "max_concurrent_trials": 0}))
    world.continue_change()
    assert len(world.place()) == 60
    _lower(world, 5)
    assert 0 < len(_stopping(world)) < 55
    world.change_leader()
    world.continue_change()
    assert sorted(set(world.live_trial_ids) - set(_stopping(world))) == [f"1.{number}" for number in range(1, 6)]


def test_a_lower_max_slots_of_a_paused_experiment_leaves_it_paused() -> None:
    world = SearchWorld(config_of({"name": "random", "max_trials": 3}))
    world.place()
    world.apply(pause_experiment(world.records, 1, "paused by ann", RULES, world.now))
    _lower(world, 1)
    world.continue_change()
    assert (world.experiment.state, len(_stopping(world))) == (State.PAUSED, 3)


def test_one_that_backs_off_does_not_use_up_max_slots() -> None:
    world = SearchWorld(config_of({"name": "random", "max_trials": 2}, resources={"max_slots": 1}, max_restarts=5))
    for _ in range(2):
        assert world.place() == ["1.1"]
        world.exit("1.1", ExitKind.USER_ERROR)
    assert world.place() == ["1.2"]


def test_pause_takes_a_checkpoint_and_activate_goes_on() -> None:
    world = _world()
    world.place()
    world.run("1.1")
    world.apply(pause_experiment(world.records, 1, "paused by ann", RULES, world.now))
    assert world.experiment.state is State.PAUSED
    allocation = world.live("1.1")
    assert (allocation.state, allocation.stop_kind) == (State.STOPPING, ExitKind.PREEMPTED)
    assert allocation.deadline_at == world.now + 3600 + RULES.force_seconds
    assert not pause_experiment(world.records, 1, "paused by bob", RULES, world.now)
    world.apply(checkpointed(world.records, Checkpoint("c1", "1.1", 1, 5, "/x")))
    world.exit("1.1", ExitKind.PREEMPTED)
    world.exit("1.2", ExitKind.PREEMPTED)
    world.change_leader()
    world.continue_change()
    assert world.place() == []
    plan = world.plan()
    assert {reason.code for reason in plan.reasons.values()} == {ReasonCode.PAUSED}
    told = held_reason(world.experiment, plan.reasons["1.1"], plan.changes["1.1"])
    assert told.message == "experiment 1 is paused by ann"
    assert told.would_start_if == "it is activated (gangline experiment activate 1)"
    assert not world.try_to_place("1.1")
    world.apply(activate_experiment(world.records, 1, RULES, world.now))
    assert (world.experiment.state, world.experiment.reason) == (State.QUEUED, "")
    assert world.place() == ["1.1", "1.2"]
    assert (world.trials[0].latest_checkpoint_id, world.trials[0].restarts) == ("c1", 0)
    assert not activate_experiment(world.records, 1, RULES, world.now)


def test_a_pause_just_after_the_first_starts_fits_into_transactions() -> None:
    """The world refuses a change that is larger than a transaction of etcd."""
    world = SearchWorld(config_of({**RANDOM, "max_trials": 80, "max_concurrent_trials": 0}))
    started = world.place()
    world.apply(pause_experiment(world.records, 1, "paused by ann", RULES, world.now))
    world.continue_change()
    assert len(started) == 32
    assert {world.live(trial_id).state for trial_id in started} == {State.STOPPING}
    assert len(world.trials) == 80


def test_a_paused_experiment_whose_last_trial_completes_has_completed() -> None:
    world = SearchWorld(config_of({"name": "single"}))
    world.place()
    world.apply(pause_experiment(world.records, 1, "paused by ann", RULES, world.now))
    world.exit("1.1", ExitKind.COMPLETED)
    assert world.experiment.outcome is Outcome.COMPLETED


def test_a_trial_that_closes_while_paused_makes_one_that_waits() -> None:
    world = _world()
    world.place()
    world.apply(pause_experiment(world.records, 1, "paused by ann", RULES, world.now))
    world.exit("1.1", ExitKind.COMPLETED)
    assert (world.experiment.state, world.trials[2].state) == (State.PAUSED, State.QUEUED)
    assert world.place() == []


def test_cancel_checkpoints_first_and_a_kill_overrides_it() -> None:
    world = _world()
    world.place()
    world.apply(cancel_experiment(world.records, 1, "canceled by ann", RULES, world.now))
    assert world.live("1.1").stop_kind is ExitKind.PREEMPTED
    assert not cancel_experiment(world.records, 1, "canceled by bob", RULES, world.now)
    world.exit("1.1", ExitKind.PREEMPTED)
    world.apply(kill_experiment(world.records, 1, "killed by bob", RULES, world.now))
    assert (world.live("1.2").stop_kind, world.live("1.2").stop_reason) == (ExitKind.KILLED, "killed by bob")
    world.exit("1.2", ExitKind.KILLED)
    assert (world.experiment.outcome, world.experiment.reason) == (Outcome.CANCELED, "killed by bob")
    assert len(world.trials) == 2, "a search that is being ended makes no more"


def test_an_ended_search_is_canceled_although_its_trials_completed() -> None:
    world = _world()
    world.place()
    world.apply(cancel_experiment(world.records, 1, "canceled by ann", RULES, world.now))
    for trial_id in ("1.1", "1.2"):
        world.exit(trial_id, ExitKind.COMPLETED)
    assert (world.experiment.outcome, world.experiment.reason) == (Outcome.CANCELED, "canceled by ann")


def test_what_has_ended_cannot_be_paused() -> None:
    world = _world()
    world.apply(kill_experiment(world.records, 1, "killed by ann", RULES, world.now))
    assert not cancel_experiment(world.records, 1, "canceled by ann", RULES, world.now)
    with pytest.raises(GanglineError) as paused:
        pause_experiment(world.records, 1, "paused by ann", RULES, world.now)
    with pytest.raises(GanglineError) as activated:
        activate_experiment(world.records, 1, RULES, world.now)
    assert paused.value.code == activated.value.code == "experiment.ended"
    assert paused.value.message == "experiment 1 has ended (CANCELED), so it cannot be paused"


def test_what_is_being_ended_cannot_be_paused() -> None:
    world = _world()
    world.place()
    world.apply(cancel_experiment(world.records, 1, "canceled by ann", RULES, world.now))
    with pytest.raises(GanglineError) as caught:
        pause_experiment(world.records, 1, "paused by ann", RULES, world.now)
    assert caught.value.code == "experiment.stopping"


def test_killing_a_live_and_a_waiting_trial_leaves_the_others() -> None:
    world = SearchWorld(config_of({**RANDOM, "max_trials": 4}))
    world.try_to_place("1.1")
    world.apply(kill_trial(world.records, "1.1", "killed by ann", RULES, world.now))
    world.apply(kill_trial(world.records, "1.2", "killed by ann", RULES, world.now))
    assert world.live("1.1").stop_kind is ExitKind.KILLED
    assert (world.trials[1].outcome, world.trials[1].reason) == (Outcome.CANCELED, "killed by ann")
    assert not kill_trial(world.records, "1.1", "killed by bob", RULES, world.now)
    # Its failing while it is killed is no reason to run again.
    world.exit("1.1", ExitKind.SIGNAL)
    assert (world.trials[0].outcome, world.trials[0].reason) == (Outcome.CANCELED, "killed by ann")
    assert not kill_trial(world.records, "1.1", "killed by bob", RULES, world.now)
    assert world.place() == ["1.3", "1.4"]
    for trial_id in ("1.3", "1.4"):
        world.exit(trial_id, ExitKind.COMPLETED)
    assert world.experiment.outcome is Outcome.COMPLETED


def test_an_unknown_trial_is_said_so() -> None:
    with pytest.raises(GanglineError) as caught:
        kill_trial(_world().records, "9.1", "killed by ann", RULES, 1.0)
    assert caught.value.code == "trial.not_found"


def test_the_best_validation_is_kept() -> None:
    world = _world()
    for batches, loss in ((10, 0.5), (20, 0.2), (30, 0.9)):
        point = MetricsPoint("validation", batches, {"loss": loss})
        world.apply(validated(world.records, "1.1", point, rules=RULES, now=1.0))
    world.apply(
        validated(world.records, "1.1", MetricsPoint("validation", 40, {"loss": math.nan}), rules=RULES, now=1.0)
    )
    trial = world.trials[0]
    assert (trial.best_validation, trial.best_validation_batches, trial.batches_completed) == (0.2, 20, 40)
    larger = SearchWorld(config_of({"name": "single", "smaller_is_better": False}))
    for batches, loss in ((10, 0.5), (20, 0.9), (30, 0.2)):
        point = MetricsPoint("validation", batches, {"loss": loss, "other": 7})
        larger.apply(validated(larger.records, "1.1", point, rules=RULES, now=1.0))
    assert larger.trials[0].best_validation == 0.9


class Halving:
    """Two trials; the worse of the two first validations is closed, the better one trains on. Is told every event."""

    listens = frozenset(SearchEventKind)
    num_planned = 2

    def __init__(self, _: Brief) -> None:
        self._metrics: dict[int, float] = {}

    def on_event(self, event: SearchEvent) -> Sequence[Operation]:
        match event.kind:
            case SearchEventKind.EXPERIMENT_CREATED:
                return [CreateTrial(), CreateTrial()]
            case SearchEventKind.TRIAL_CLOSED:
                return [ShutDown()]
            case SearchEventKind.VALIDATED if event.metric is not None:
                self._metrics[event.trial_number] = event.metric
                if len(self._metrics) == 2:
                    return [CloseTrial(max(self._metrics, key=lambda number: self._metrics[number]))]
        return []

    def hyperparameters(self, number: int) -> dict[str, Any]:
        return {"number": number}


def test_every_searcher_that_a_configuration_may_name_is_registered() -> None:
    assert set(SEARCHERS) == set(SEARCHER_ROWS)


def test_a_searcher_closes_a_trial_by_its_validations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SEARCHERS, "single", Halving)
    world = SearchWorld(config_of({"name": "single"}))
    world.place()
    world.run("1.2")
    world.apply(progressed(world.records, "1.2", Progress(4, 9, 1.0, world.now), RULES, world.now))
    for number, loss in ((1, 0.2), (2, 0.7)):
        world.change_leader()
        point = MetricsPoint("validation", 5, {"loss": loss})
        world.apply(validated(world.records, f"1.{number}", point, rules=RULES, now=world.now))
    assert world.live("1.2").stop_kind is ExitKind.PREEMPTED
    world.exit("1.2", ExitKind.PREEMPTED)
    assert (world.trials[1].outcome, world.trials[1].closing) == (Outcome.COMPLETED, None)
    world.exit("1.1", ExitKind.COMPLETED)
    assert world.experiment.outcome is Outcome.COMPLETED
    kinds = [event.kind for event in get(world.records, SearchLog, "1/000000").events]
    assert kinds == [
        SearchEventKind.EXPERIMENT_CREATED,
        SearchEventKind.TRIAL_CREATED,
        SearchEventKind.TRIAL_CREATED,
        SearchEventKind.PROGRESSED,
        SearchEventKind.VALIDATED,
        SearchEventKind.VALIDATED,
        SearchEventKind.TRIAL_CLOSED,
    ]


def _told(world: SearchWorld) -> list[tuple[int, int, float | None]]:
    """The validations in the log: trial, batches, metric."""
    pages = sorted(world.records.all_of(SearchLog), key=lambda log: log.page)
    return [
        (event.trial_number, event.batches_completed, event.metric)
        for page in pages
        for event in page.events
        if event.kind is SearchEventKind.VALIDATED
    ]


ASHA = {"name": "async_halving", "num_rungs": 2, "divisor": 2, "max_length": {"batches": 40}, "max_trials": 4}


def _report(world: SearchWorld, trial_id: str, batches: int, **metrics: float) -> None:
    point = MetricsPoint("validation", batches, metrics)
    world.apply(validated(world.records, trial_id, point, rules=RULES, now=world.now))


def test_a_validation_reaches_the_searcher_once() -> None:
    world = SearchWorld(config_of(ASHA, max_restarts=3))
    world.place()
    _report(world, "1.1", 10, loss=0.5)
    # The same report again, also after a change of the leader, and with another number.
    _report(world, "1.1", 10, loss=0.5)
    world.change_leader()
    _report(world, "1.1", 10, loss=0.4)
    # The trial restarts from its beginning and validates the same batches again, then further ones.
    world.exit("1.1", ExitKind.USER_ERROR)
    world.place()
    for batches in (5, 10, 15):
        _report(world, "1.1", batches, loss=0.3)
    assert _told(world) == [(1, 10, 0.5), (1, 15, 0.3)]
    # Without the searcher's metric it is no result. It may still come for the same batches.
    _report(world, "1.1", 16, accuracy=0.9)
    _report(world, "1.1", 16, loss=0.2, accuracy=0.9)
    assert _told(world)[2:] == [(1, 16, 0.2)]


def test_a_validation_before_the_first_batch_counts_once() -> None:
    world = SearchWorld(config_of(ASHA))
    world.place()
    for _ in range(2):
        _report(world, "1.1", 0, loss=2.0)
    assert _told(world) == [(1, 0, 2.0)]


def test_an_infinite_metric_arrives_as_nan() -> None:
    world = SearchWorld(config_of(ASHA))
    world.place()
    _report(world, "1.1", 10, loss=-math.inf)
    [(_, _, metric)] = _told(world)
    assert metric is not None
    assert math.isnan(metric)


def test_a_superseded_attempt_and_an_ended_trial_tell_nothing() -> None:
    world = SearchWorld(config_of(ASHA, max_restarts=3))
    world.place()
    first = world.live("1.1").id
    world.exit("1.1", ExitKind.USER_ERROR)
    world.place()

    def late(records: Records) -> StateChange:
        return validated(records, "1.1", MetricsPoint("validation", 10, {"loss": 0.1}), rules=RULES, now=world.now)

    world.apply(fenced(first, late)(world.records))
    assert _told(world) == []
    world.apply(fenced(world.live("1.1").id, late)(world.records))
    world.exit("1.2", ExitKind.OUT_OF_MEMORY)
    _report(world, "1.2", 20, loss=0.1)
    assert _told(world) == [(1, 10, 0.1)]


def test_a_searcher_that_does_not_listen_has_no_such_events() -> None:
    world = _world()
    world.place()
    _report(world, "1.1", 10, loss=0.5)
    assert _told(world) == []
    [page] = world.records.all_of(SearchLog)
    assert [event.kind for event in page.events] == [SearchEventKind.EXPERIMENT_CREATED]


@pytest.mark.parametrize(
    ("length", "metrics", "reported", "units"),
    [
        ({"max_length": {"batches": 40}}, {}, None, 10.0),
        ({"max_length": {"epochs": 4}}, {}, 2.5, 2.5),
        ({"max_length": {"epochs": 4}}, {"epochs": 3.0}, 2.5, 3.0),
        ({"max_length": {"records": 400}}, {}, 320.0, 320.0),
        ({"max_length": {"batches": 40}, "time_metric": "tokens", "max_time": 99}, {"tokens": 7.0}, 10.0, 7.0),
        ({"max_length": None, "time_metric": "batches", "max_time": 40}, {}, None, 10.0),
    ],
)
def test_a_validation_carries_the_length_in_the_searcher_s_unit(
    length: dict[str, Any], metrics: dict[str, float], reported: float | None, units: float
) -> None:
    world = SearchWorld(config_of({**ASHA, **length}))
    world.place()
    point = MetricsPoint("validation", 10, {"loss": 0.5, **metrics})
    world.apply(validated(world.records, "1.1", point, units=reported, rules=RULES, now=world.now))
    [page] = world.records.all_of(SearchLog)
    assert page.events[-1].units == units


def test_a_search_that_cannot_measure_its_trials_ends_at_the_first_validation() -> None:
    world = SearchWorld(config_of({**ASHA, "time_metric": "tokens", "max_time": 99}))
    world.place()
    _report(world, "1.1", 10, loss=0.5, token=3)
    assert world.experiment.reason == (
        "the validation of trial 1.1 has no number 'tokens', by which searcher.time_metric measures how far a trial "
        "is; it reports loss, token; report 'tokens' with each validation, or call report_progress of the searcher's "
        "operation before it"
    )
    for trial_id in world.live_trial_ids:
        world.exit(trial_id, ExitKind.KILLED)
    assert world.experiment.outcome is Outcome.FAILED


def test_a_stopped_trial_has_completed_and_says_at_which_rung() -> None:
    world = SearchWorld(config_of({**ASHA, "max_concurrent_trials": 2}))
    world.place()
    for number, loss in ((1, 0.2), (2, 0.7)):
        _report(world, f"1.{number}", 20, loss=loss)
    assert world.live("1.2").stop_kind is ExitKind.PREEMPTED
    assert len(world.trials) == 2, "a trial that is being stopped still counts against max_concurrent_trials"
    world.exit("1.2", ExitKind.PREEMPTED)
    trial = world.trials[1]
    reason = (
        "its searcher stopped it at rung 1 of 2 (20 batches): its loss 0.7 has rank 2 of 2 there, and only the best "
        "trains on"
    )
    assert (trial.outcome, trial.reason, trial.restarts) == (Outcome.COMPLETED, reason, 0)
    assert world.place() == ["1.3"]


def test_a_trial_is_stopped_while_its_experiment_pauses() -> None:
    """The reason is that of the searcher, although the pause came first."""
    world = SearchWorld(config_of({**ASHA, "max_concurrent_trials": 2}))
    world.place()
    _report(world, "1.1", 20, loss=0.2)
    world.apply(pause_experiment(world.records, 1, "paused by ann", RULES, world.now))
    _report(world, "1.2", 20, loss=0.7)
    world.exit("1.2", ExitKind.PREEMPTED)
    assert world.trials[1].outcome is Outcome.COMPLETED
    assert world.trials[1].reason.startswith("its searcher stopped it at rung 1 of 2")
    # A trial that waits ends at once when its last validation arrives late.
    world.exit("1.1", ExitKind.PREEMPTED)
    _report(world, "1.1", 40, loss=0.1)
    assert world.trials[0].reason.startswith("it reached the last rung, rung 2 of 2 (40 batches)")
    assert (world.experiment.state, [trial.state for trial in world.trials[2:]]) == (State.PAUSED, [State.QUEUED] * 2)


@pytest.mark.parametrize(
    "searcher",
    [RANDOM, {**ASHA, "max_trials": 3, "max_concurrent_trials": 2}, {**ASHA, "name": "adaptive_asha", "max_trials": 3}],
    ids=["random", "async_halving", "adaptive_asha"],
)
def test_invalid_hyperparameters_are_replaced_without_a_restart(searcher: dict[str, Any]) -> None:
    if searcher["name"] == "adaptive_asha":
        searcher = {key: value for key, value in searcher.items() if key != "num_rungs"}
    world = SearchWorld(config_of(searcher, max_restarts=5))
    world.place()
    world.exit("1.1", ExitKind.INVALID_HP)
    trial = world.trials[0]
    assert (trial.outcome, trial.restarts) == (Outcome.FAILED, 0)
    assert trial.reason == "agent a1: as told; not tried again, because its hyperparameters are invalid (InvalidHP)"
    assert world.search.num_planned == 4
    _complete_all(world)
    assert [each.outcome for each in world.trials] == [Outcome.FAILED, *[Outcome.COMPLETED] * 3]
    assert world.experiment.outcome is Outcome.COMPLETED
    assert len({each.hyperparameters_json for each in world.trials}) == 4


def test_invalid_hyperparameters_of_a_grid_are_not_replaced() -> None:
    points = {"x": {"type": "double", "minval": 0, "maxval": 1, "count": 3}}
    world = SearchWorld(config_of({"name": "grid"}, hyperparameters=points))
    world.place()
    world.exit("1.1", ExitKind.INVALID_HP)
    _complete_all(world)
    assert len(world.trials) == 3


def test_a_search_whose_points_are_all_invalid_ends() -> None:
    world = _world()
    for _ in range(20):
        for trial_id in world.place():
            world.exit(trial_id, ExitKind.INVALID_HP)
    assert (len(world.trials), world.experiment.outcome) == (13, Outcome.FAILED)


def _complete_all(world: SearchWorld) -> None:
    while world.experiment.state is not State.TERMINAL:
        world.place()
        for trial_id in world.live_trial_ids:
            world.exit(trial_id, ExitKind.COMPLETED)


def test_an_event_replays_no_log_and_a_refused_one_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SearchWorld(config_of({**ASHA, "max_concurrent_trials": 2}))
    world.place()
    num_replays = 0
    original = replay_module.replay

    def counted(*arguments: Any) -> Any:
        nonlocal num_replays
        num_replays += 1
        return original(*arguments)

    monkeypatch.setattr(replay_module, "replay", counted)
    for batches in range(1, 20):
        _report(world, "1.1", batches, loss=0.5)
    assert num_replays == 0
    # A change that etcd refuses: the searcher has seen an event that is not in the log.
    refused = validated(world.records, "1.1", MetricsPoint("validation", 20, {"loss": 0.1}), rules=RULES, now=world.now)
    assert refused
    _report(world, "1.1", 20, loss=0.9)
    assert num_replays == 1
    _report(world, "1.2", 20, loss=0.5)
    assert world.live("1.2").state is not State.STOPPING, "0.5 is better than 0.9, and 0.1 was never written"
    # Another leader has the same log, and no searcher in memory.
    world.change_leader()
    _report(world, "1.2", 30, loss=0.5)
    assert num_replays == 2


def test_searchers_in_memory_are_bounded_by_their_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "MAX_KEPT_EVENTS", 10)
    kept = replay_module.KeptSearchers()
    monkeypatch.setattr(replay_module, "_kept_searchers", kept)
    searcher = replay_module.make_searcher(settled_of(config_of(RANDOM)), 7)
    search = Search(1, 7, num_events=4)
    for number in range(1, 5):
        page = SearchLog(number, 0, (SearchEvent(SearchEventKind.EXPERIMENT_CREATED),))
        records = SchedulerState.of([page])
        replay_module.keep_searcher(records, replace(search, experiment_id=number), searcher)
    assert [number for number in range(1, 6) if kept.take(number)] == [3, 4]
    records = SchedulerState.of([SearchLog(5, 0, (SearchEvent(SearchEventKind.EXPERIMENT_CREATED),))])
    replay_module.keep_searcher(records, Search(5, 7, num_events=4, is_shut_down=True), searcher)
    assert kept.take(5) is None, "a search that has ended asks for nothing more"


def test_pursuing_what_is_settled_changes_nothing() -> None:
    world = _world()
    assert not continue_change(world.records, 1, RULES, world.now)
    assert not continue_change(world.records, 9, RULES, world.now)


def _validate(world: SearchWorld, trial_id: str, metrics: dict[str, float]) -> None:
    point = MetricsPoint("validation", 5, metrics)
    world.apply(validated(world.records, trial_id, point, rules=RULES, now=world.now))


def test_a_search_whose_metric_no_validation_reports_ends_at_the_first_one() -> None:
    world = SearchWorld(
        config_of({"name": "random", "max_trials": 4, "max_concurrent_trials": 3, "metric": "val_loss"})
    )
    world.place()
    world.run("1.1")
    _validate(world, "1.1", {"loss": 0.5, "valid_loss": 0.4})
    assert world.experiment.state is State.STOPPING
    assert world.experiment.reason == (
        "the validation of trial 1.1 has no metric 'val_loss', by which searcher.metric compares trials; it reports "
        "loss, valid_loss; did you mean 'valid_loss'?"
    )
    assert world.live("1.1").stop_kind is ExitKind.KILLED
    # Late and repeated reports, and another leader, change nothing.
    world.change_leader()
    _validate(world, "1.1", {"loss": 0.5})
    for trial_id in world.live_trial_ids:
        world.exit(trial_id, ExitKind.KILLED)
    world.continue_change()
    assert (world.experiment.state, world.experiment.outcome) == (State.TERMINAL, Outcome.FAILED)
    assert world.experiment.reason.startswith("the validation of trial 1.1 has no metric 'val_loss'")
    assert [trial.restarts for trial in world.trials] == [0, 0, 0]


@pytest.mark.parametrize("metrics", [{"val_loss": math.nan}, {"val_loss": 0.5, "other": 1}])
def test_a_metric_that_is_reported_is_none_that_is_missing(metrics: dict[str, float]) -> None:
    world = SearchWorld(config_of({"name": "random", "max_trials": 2, "metric": "val_loss"}))
    world.place()
    world.run("1.1")
    _validate(world, "1.1", metrics)
    assert world.experiment.state is not State.STOPPING


def test_other_metrics_may_follow_the_one_that_decides() -> None:
    world = SearchWorld(config_of({"name": "random", "max_trials": 2, "metric": "val_loss"}))
    world.place()
    world.run("1.1")
    _validate(world, "1.1", {"val_loss": 0.5})
    _validate(world, "1.1", {"time": 3})
    assert world.experiment.state is not State.STOPPING


def test_a_single_trial_goes_on_without_its_metric() -> None:
    world = SearchWorld(config_of({"name": "single", "metric": "val_loss"}))
    world.place()
    world.run("1.1")
    _validate(world, "1.1", {"loss": 0.5})
    assert world.experiment.state is State.RUNNING
