"""A trial past its length: which validations choose the best, the warning, and the end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gangline.domain.experiment import Checkpoint, Trial
from gangline.domain.history import MetricsPoint
from gangline.domain.state import ExitKind, Outcome, State
from services.scheduler.state.estimate import Progress
from services.scheduler.transition.report import checkpointed, passes_length, progressed, validated
from tests.support.search_world import RULES, SearchWorld, config_of

SINGLE: dict[str, Any] = {"name": "single", "max_length": {"batches": 200}}
RANDOM: dict[str, Any] = {"name": "random", "max_trials": 2, "max_length": {"batches": 200}}


def _world(searcher: dict[str, Any]) -> SearchWorld:
    world = SearchWorld(config_of(searcher))
    world.place()
    return world


def _validate(world: SearchWorld, batches: int, loss: float, units: float | None = None, **more: float) -> Trial:
    point = MetricsPoint("validation", batches, {"loss": loss, **more})
    world.apply(validated(world.records, "1.1", point, units=units, rules=RULES, now=world.now))
    return world.trials[0]


def _progress(world: SearchWorld, batches: int) -> Trial:
    world.apply(progressed(world.records, "1.1", Progress(batches, 0, 0.0, world.now), RULES, world.now))
    return world.trials[0]


@pytest.mark.parametrize(("searcher", "units"), [(RANDOM, None), (SINGLE, 0.0)])
def test_the_first_validation_at_or_past_the_length_is_the_last_that_counts(
    searcher: dict[str, Any], units: float | None
) -> None:
    world = _world(searcher)
    _validate(world, 150, 0.9, units)
    assert not _validate(world, 210, 0.5, units).warning
    trial = _validate(world, 270, 0.1, units)
    assert (trial.best_validation, trial.best_validation_batches, trial.length_batches) == (0.5, 210, 210)
    assert trial.warning == (
        "it trains past its length: 270 of 200 batches; validations from there on choose no best, and it ends past "
        "400 batches"
    )
    assert _validate(world, 280, 0.1, units).warning == trial.warning
    # A restart from an earlier checkpoint comes to the same length again.
    assert _validate(world, 200, 0.4, units).best_validation == 0.4
    assert _validate(world, 210, 0.3, units).best_validation == 0.4
    assert trial.closing is None


def test_a_first_validation_far_past_the_length_chooses_no_best() -> None:
    world = _world(RANDOM)
    assert _validate(world, 500, 0.1).best_validation is None


@pytest.mark.parametrize("report", [lambda world: _validate(world, 401, 0.1), lambda world: _progress(world, 401)])
def test_a_trial_of_a_search_ends_past_twice_its_length(report: Any) -> None:
    world = _world(RANDOM)
    assert _progress(world, 400).closing is None
    trial = report(world)
    assert trial.closing is Outcome.COMPLETED
    assert trial.warning
    allocation = world.live("1.1")
    assert (allocation.stop_kind, allocation.stop_reason) == (
        ExitKind.PREEMPTED,
        "it has trained 401 batches of 200; a trial ends past 400, so let the script stop at the length",
    )
    assert allocation.deadline_at > world.now, "the end by force follows the grace"
    assert report(world) == trial
    world.exit("1.1", ExitKind.PREEMPTED)
    ended = world.trials[0]
    assert (ended.state, ended.outcome, ended.reason) == (State.TERMINAL, Outcome.COMPLETED, allocation.stop_reason)


def test_a_single_trial_that_takes_no_length_from_the_searcher_is_only_warned() -> None:
    world = _world({**SINGLE, "max_length": 1})
    assert not _progress(world, 101).warning, "a script may ask only now and then whether it is done"
    trial = _validate(world, 5000, 0.1)
    trial = _progress(world, 5001)
    assert (trial.best_validation, trial.closing) == (0.1, None)
    assert trial.warning == (
        "it trains past its length: 5001 of 1 batches; its script decides about its own length, so leave out "
        "searcher.max_length"
    )


def test_other_units_count_as_they_are_reported() -> None:
    world = _world({**RANDOM, "max_length": {"epochs": 2}})
    assert _progress(world, 10_000).closing is None
    assert _validate(world, 100, 0.4, units=2.0).best_validation == 0.4
    assert _validate(world, 200, 0.3, units=4.0).best_validation == 0.4
    assert _validate(world, 201, 0.3, units=4.1).closing is Outcome.COMPLETED


def test_a_trial_without_a_length_has_no_bound() -> None:
    world = _world({"name": "random", "max_trials": 2})
    trial = _validate(world, 10**9, 0.1)
    assert (trial.best_validation, trial.warning, trial.closing) == (0.1, "", None)
    assert not passes_length(_section(SINGLE | {"max_length": None}), 10**9)


def _section(searcher: dict[str, Any]) -> Any:
    from services.scheduler.state.settled import settled_of

    return settled_of(config_of(searcher)).searcher


def test_a_checkpoint_past_the_length_is_never_the_best() -> None:
    world = _world(RANDOM)
    for batches, loss in ((200, 0.5), (240, 0.1)):
        _validate(world, batches, loss)
        own = Checkpoint(f"c{batches}", "1.1", 1, batches, "file:///c", metadata_json=_metrics(loss))
        world.apply(checkpointed(world.records, own))
    marks = {each.id: (each.is_past_length, each.state.value) for each in world.records.checkpoints_of("1.1")}
    # The default keeps the best and the latest one of a trial.
    assert marks == {"c200": (False, "COMPLETED"), "c240": (True, "COMPLETED")}


def _metrics(loss: float) -> str:
    return json.dumps({"validation_metrics": {"loss": loss}})


def test_values_past_the_length_do_not_reach_a_searcher_that_compares_them() -> None:
    world = _world({"name": "tpe", "max_trials": 2, "max_length": {"batches": 200}, "metric": "loss"})
    world.continue_change()
    world.place()
    before = world.search.num_events
    _validate(world, 200, 0.5)
    after = world.search.num_events
    _validate(world, 210, 0.1)
    assert (after - before, world.search.num_events) == (1, after)
