"""Invariants of every search, whatever happens to its trials and whichever scheduler leads.

A search never makes more trials than it may, never more at a time, never more slots. A new leader makes the trials that
the old one would have made.
"""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import given, settings

from gangline.domain.allocation import Allocation, Request
from gangline.domain.history import MetricsPoint
from gangline.domain.state import ExitKind, Outcome, State
from services.scheduler.searcher.interface import most_replaced
from services.scheduler.transition.end import activate_experiment, kill_trial, pause_experiment
from services.scheduler.transition.report import validated
from tests.support.examples import examples
from tests.support.search_world import RULES, SearchWorld, config_of

ENDS = [
    *(ExitKind.COMPLETED, ExitKind.PREEMPTED, ExitKind.USER_ERROR),
    *(ExitKind.OUT_OF_MEMORY, ExitKind.RUNNER_LOST, ExitKind.INVALID_HP),
]
STEPS = [
    "place",
    "place",
    "exit",
    "exit",
    "exit",
    "validate",
    "validate",
    "pause",
    "activate",
    "kill",
    "time",
    "pursue",
]
HALVING = ("async_halving", "adaptive_asha")


@dataclass(frozen=True)
class Limits:
    num_trials: int
    at_once: int
    max_slots: int | None
    slots: int
    searcher: str

    @property
    def config(self) -> str:
        searcher: dict[str, object] = {"name": self.searcher, "max_concurrent_trials": self.at_once}
        points = {"x": {"type": "double", "minval": 0, "maxval": 1, "count": self.num_trials}}
        if self.searcher != "grid":
            searcher["max_trials"] = self.num_trials
        if self.searcher == "optuna":
            searcher |= {"sampler": "random", "pruner": {"name": "ThresholdPruner", "upper": 5}}
        if self.searcher in HALVING:
            searcher |= {"divisor": 2, "max_length": {"batches": 8}}
        if self.searcher == "async_halving":
            searcher["num_rungs"] = 3
        resources = {"slots_per_trial": self.slots, "max_slots": self.max_slots}
        return config_of(searcher, hyperparameters=points, resources=resources, max_restarts=1)

    @property
    def most_at_once(self) -> int:
        """adaptive_asha has at least one trial at a time in each bracket, and at most 5 rungs and so 5 brackets."""
        least = 5 if self.searcher == "adaptive_asha" else 1
        return max(self.at_once, least) if self.at_once else self.num_trials


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    slots = draw(st.integers(1, 3))
    max_slots = draw(st.none() | st.integers(slots, 3 * slots + 1))
    num_trials = draw(st.integers(1, 6) | st.just(80))
    searcher = draw(st.sampled_from(["grid", "random", "optuna", *HALVING]))
    return Limits(num_trials, draw(st.integers(0, 4)), max_slots, slots, searcher)


steps = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 99), st.sampled_from(ENDS)), max_size=40)


def take(world: SearchWorld, step: str, choice: int, end: ExitKind) -> None:
    is_over = world.experiment.state is State.TERMINAL
    match step:
        case "place":
            was_paused = world.experiment.state is State.PAUSED
            assert not (world.place() and was_paused)
        case "exit" if world.live_trial_ids:
            world.exit(world.live_trial_ids[choice % len(world.live_trial_ids)], end)
        case "validate" if world.trials:
            trial = world.trials[choice % len(world.trials)]
            point = MetricsPoint("validation", 1 + choice % 9, {"loss": choice % 7})
            change = validated(world.records, trial.id, point, rules=RULES, now=world.now)
            world.apply(change)
        case "pause" if not is_over:
            world.apply(pause_experiment(world.records, 1, "paused by ann", RULES, world.now))
        case "activate" if not is_over:
            world.apply(activate_experiment(world.records, 1, RULES, world.now))
        case "kill" if world.trials:
            trial = world.trials[choice % len(world.trials)]
            world.apply(kill_trial(world.records, trial.id, "killed by ann", RULES, world.now))
        case "time":
            world.now += 70
        case "pursue":
            world.continue_change()


def check(world: SearchWorld, limits: Limits) -> None:
    going_on = [trial for trial in world.trials if trial.state is not State.TERMINAL]
    assert [trial.number for trial in world.trials] == list(range(1, len(world.trials) + 1))
    num_most = limits.num_trials + num_replaced(world, limits)
    assert len(world.trials) <= num_most
    assert len(going_on) <= limits.most_at_once
    allocations = list(world.records.all_of(Allocation))
    used = sum(allocation.num_slots for allocation in allocations)
    assert limits.max_slots is None or used <= limits.max_slots
    waiting = {request.trial_id for request in world.records.all_of(Request)}
    assert waiting | {allocation.trial_id for allocation in allocations} == {trial.id for trial in going_on}
    assert len(waiting) + len(allocations) == len(going_on)
    if world.experiment.state is State.TERMINAL:
        assert not going_on
        assert len(world.trials) == num_most, "the experiment ends when the search is done, and not before"


def num_replaced(world: SearchWorld, limits: Limits) -> int:
    """Trials with invalid hyperparameters for which another one is made."""
    invalid = [
        trial
        for trial in world.trials
        if trial.outcome is Outcome.FAILED
        and trial.last_failure is not None
        and trial.last_failure.kind is ExitKind.INVALID_HP
    ]
    return 0 if limits.searcher == "grid" else min(len(invalid), most_replaced(limits.num_trials))


def finish(world: SearchWorld) -> None:
    """Everything that is left completes."""
    if world.experiment.state is State.PAUSED:
        world.apply(activate_experiment(world.records, 1, RULES, world.now))
    for _ in range(400):
        if world.experiment.state is State.TERMINAL:
            return
        world.now += 70
        world.continue_change()
        world.place()
        for trial_id in world.live_trial_ids:
            world.exit(trial_id, ExitKind.COMPLETED)
    raise AssertionError("the search does not come to its end")


@given(limits(), steps)
@settings(max_examples=examples(60))
def test_limits_hold_at_every_instant_and_the_search_ends(
    limits: Limits, taken: list[tuple[str, int, ExitKind]]
) -> None:
    world = SearchWorld(limits.config)
    check(world, limits)
    for step in taken:
        take(world, *step)
        check(world, limits)
    finish(world)
    check(world, limits)
    assert world.experiment.outcome is not None
    completed = [trial for trial in world.trials if trial.outcome is Outcome.COMPLETED]
    assert (world.experiment.outcome is Outcome.COMPLETED) == bool(completed)


@given(limits(), steps, st.sets(st.integers(0, 40)))
@settings(max_examples=examples(60))
def test_a_new_leader_makes_the_same_trials(
    limits: Limits, taken: list[tuple[str, int, ExitKind]], changes_at: set[int]
) -> None:
    steady, changing = SearchWorld(limits.config), SearchWorld(limits.config)
    for step in taken:
        take(steady, *step)
    finish(steady)
    for place, step in enumerate(taken):
        if place in changes_at:
            changing.change_leader()
        take(changing, *step)
    changing.change_leader()
    finish(changing)
    assert changing.trials == steady.trials
    assert changing.experiment == steady.experiment


@given(st.integers(0, 2**31 - 1), st.integers(1, 5))
@settings(max_examples=examples(20))
def test_the_seed_decides_every_trial(seed: int, at_once: int) -> None:
    """However many run at a time, trial number n has the same hyperparameters and the same seed."""
    drawn_trials = []
    for width in (at_once, 1):
        searcher: dict[str, object] = {"name": "random", "max_trials": 6, "max_concurrent_trials": width}
        world = SearchWorld(config_of(searcher), seed)
        finish(world)
        drawn_trials.append([(trial.hyperparameters_json, trial.seed) for trial in world.trials])
    assert drawn_trials[0] == drawn_trials[1]
    assert len({hyperparameters for hyperparameters, _ in drawn_trials[0]}) == 6
