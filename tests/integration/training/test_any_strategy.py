"""One trial goes on through gangs of four, three, two and one rank, each time under another strategy, and trains to the
numbers of a trial that nothing interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gangline.pytorch import load_checkpoint
from tests.support.folder_work import in_folder
from tests.support.gang import run_gang
from tests.support.once import make_once
from tests.support.pipeline_models import Chain
from tests.support.pipeline_trial import ChainTrial, Result, Run, train

# After each leg. The fourth batch ends an epoch and has 4 records of 12. The optimizer's restored state shows in
# the loss of the next leg, and that of the last leg in the model.
_BATCHES = (2, 3, 4, 5)
_RECORDS = 40


def _pipeline(stages: int, schedule: str = "1F1B") -> dict[str, Any]:
    return {"strategy": "pipeline", "stages": stages, "schedule": schedule}


# The strategies on four, three and two ranks; then one rank goes on with each.
_COURSES: dict[str, tuple[Any, Any, Any]] = {
    "stages of two replicas": (_pipeline(2), "zero3", _pipeline(2, "Interleaved1F1B")),
    "copies of shards": ("hsdp", _pipeline(3), "zero2"),
    "four stages": (_pipeline(4, "GPipe"), "ddp", _pipeline(2, "ZBVZeroBubble")),
    "shards": ("zero2", "zero1", {**_pipeline(2), "replicas": "zero2"}),
    "divided replicas": ({**_pipeline(2), "replicas": "zero2"}, "zero1", "zero3"),
}
_OPTIMIZERS = ("adamw", "sgd")
_NAMES = [(name, optimizer) for name in _COURSES for optimizer in _OPTIMIZERS]


def _run(parallelism: Any, optimizer: str, batches: int) -> Run:
    hparams = {"global_batch_size": 12, "optimizer": optimizer, "records": _RECORDS, "validation_records": 8}
    return Run(ChainTrial, parallelism, batches=batches, hparams=hparams, saves=True)


Courses = dict[tuple[str, str], list[Result]]


@in_folder
def train_on(directory: Path, runs: Sequence[tuple[Run, str | None]]) -> list[Result]:
    """Trains runs in a folder that several gangs share, each from a checkpoint or from nothing."""
    return [train(run, latest) for run, latest in runs]


def _train_courses(directory: Path) -> tuple[Courses, Path]:
    """The result of each leg of each course, as rank 0 has it, and the folder of their checkpoints."""
    storage = directory / "storage"
    found: Courses = {key: [] for key in _NAMES}
    for leg, size in enumerate((4, 3, 2)):
        runs = [
            (_run(_COURSES[name][leg], optimizer, _BATCHES[leg]), _checkpoint(found[name, optimizer]))
            for name, optimizer in _NAMES
        ]
        results = run_gang(size, directory / f"gang{leg}", train_on, storage, runs)[0]
        for key, result in zip(_NAMES, results, strict=True):
            found[key].append(result)
    last = [(_run("none", optimizer, _BATCHES[3]), _checkpoint(found[name, optimizer])) for name, optimizer in _NAMES]
    for key, result in zip(_NAMES, train_on(storage, last), strict=True):
        found[key].append(result)
    return found, storage


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Courses, Path]:
    return make_once(tmp_path_factory, "any_strategy", _train_courses)


@pytest.fixture(scope="module")
def courses(trained: tuple[Courses, Path]) -> Courses:
    return trained[0]


@pytest.fixture(scope="module")
def storage(trained: tuple[Courses, Path]) -> Path:
    return trained[1]


@pytest.fixture(scope="module")
def whole(storage: Path) -> dict[str, Result]:
    """The same trial in one process without a break."""
    runs: list[tuple[Run, str | None]] = [(_run("none", optimizer, _BATCHES[3]), None) for optimizer in _OPTIMIZERS]
    return dict(zip(_OPTIMIZERS, train_on(storage, runs), strict=True))


def _checkpoint(legs: list[Result]) -> str | None:
    return legs[-1].checkpoint if legs else None


@pytest.mark.parametrize(("name", "optimizer"), _NAMES)
def test_a_trial_goes_on_under_any_strategy_on_any_number_of_slots(
    name: str, optimizer: str, courses: Courses, whole: dict[str, Result]
) -> None:
    legs, reference = courses[name, optimizer], whole[optimizer]
    first = 0
    for leg, last in zip(legs, _BATCHES, strict=True):
        assert leg.losses == pytest.approx(reference.losses[first:last], abs=1e-12)
        first = last
    for parameter, value in legs[-1].model.items():
        assert (value - reference.model[parameter]).abs().max() <= 1e-10, parameter


@pytest.mark.parametrize(("name", "optimizer"), _NAMES)
def test_each_checkpoint_fits_the_plain_model(name: str, optimizer: str, courses: Courses, storage: Path) -> None:
    for leg in courses[name, optimizer]:
        assert leg.checkpoint is not None
        (path,) = storage.rglob(leg.checkpoint)
        (state,) = load_checkpoint(path)["models_state_dict"]
        Chain().double().load_state_dict(state, strict=True)
        assert all((state[parameter] - leg.model[parameter]).abs().max() == 0 for parameter in state)
