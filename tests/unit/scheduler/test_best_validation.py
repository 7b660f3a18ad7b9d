"""The best validation of a trial is one of the model that it trains now, not one of an abandoned attempt."""

from __future__ import annotations

from dataclasses import replace

from gangline.domain.experiment import Trial
from gangline.domain.history import MetricsPoint
from gangline.domain.state import ExitKind
from services.scheduler.state.records import StateChange
from services.scheduler.transition.report import MAX_BEST_VALIDATIONS, validated
from tests.support.search_world import RULES, SearchWorld, config_of

SINGLE: dict[str, object] = {"name": "single", "max_length": {"batches": 1000}}


def _world() -> SearchWorld:
    world = SearchWorld(config_of(SINGLE, max_restarts=3))
    world.place()
    return world


def _restart(world: SearchWorld) -> None:
    world.exit("1.1", ExitKind.USER_ERROR)
    world.now += 100
    world.place()


def _validate(world: SearchWorld, batches: int, loss: float) -> tuple[float | None, int]:
    point = MetricsPoint("validation", batches, {"loss": loss})
    world.apply(validated(world.records, "1.1", point, rules=RULES, now=world.now))
    trial = world.trials[0]
    return trial.best_validation, trial.best_validation_batches


def test_a_newer_attempt_drops_the_best_values_of_older_ones_from_its_first_batch_on() -> None:
    world = _world()
    for batches, loss in ((10, 0.9), (20, 0.5), (30, 0.6), (40, 0.1)):
        _validate(world, batches, loss)
    _restart(world)
    assert world.trials[0].attempts == 2
    assert world.trials[0].best_validation == 0.1, "as long as the new attempt has reported nothing"
    assert _validate(world, 30, 0.7) == (0.5, 20)
    assert _validate(world, 40, 0.4) == (0.4, 40)
    assert _validate(world, 35, 0.45) == (0.4, 40), "an attempt replaces nothing of its own"
    _restart(world)
    assert _validate(world, 5, 0.95) == (0.95, 5)


def test_the_best_value_of_an_earlier_version_is_replaced_too() -> None:
    world = _world()
    _validate(world, 10, 0.2)
    old = replace(world.trials[0], best_validations=(), best_validation=0.2, best_validation_batches=10)
    world.apply(StateChange(puts=(old,)))
    assert _validate(world, 20, 0.3) == (0.2, 10)
    _restart(world)
    assert _validate(world, 5, 0.4) == (0.4, 5)


def test_the_number_of_values_on_record_is_bounded() -> None:
    world = _world()
    for number in range(2 * MAX_BEST_VALIDATIONS):
        _validate(world, number, 1 - number / 1000)
    trial: Trial = world.trials[0]
    assert len(trial.best_validations) == MAX_BEST_VALIDATIONS
    assert trial.best_validation_batches == 2 * MAX_BEST_VALIDATIONS - 1
