"""Copies of a tensor on several ranks stay the same: parameters that drift apart end the trial, and buffers that each
rank fills from its own records are warned of once."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gangline import pytorch
from gangline.pytorch import load_checkpoint
from gangline.pytorch.training import drift
from tests.support.changing_trial import ChangingTrial, rank, run
from tests.support.gang import run_gang
from tests.support.points_trial import Block, Net

_REPLICAS: dict[str, Any] = {
    "hsdp": "hsdp",
    "whole replicas": {"strategy": "pipeline", "stages": 2},
    "divided replicas": {"strategy": "pipeline", "stages": 2, "replicas": "zero2"},
}
_NAME = r"blocks\.0\.widen\.weight"
# Batches of an epoch of PointsTrial, with 8 records in each.
_EPOCH = 12


def _check_refused(results: list[tuple[str, Any]], owner: str, what: str = "a model") -> None:
    pattern = (
        rf"training\.drift: {_NAME} differs between {owner}s by 0\.\d+ of its largest value at batch {_EPOCH}, "
        rf"so each {owner} trains {what} of its own; there is no checkpoint yet\. Make gradients"
    )
    for refusal, _ in results:
        assert re.match(pattern, refusal), refusal


def _check_allowed(results: list[tuple[str, Any]], owner: str) -> None:
    assert [refusal for refusal, _ in results] == [""] * len(results)
    # Once, on the chief.
    rounding = [[text for text in texts if "rounding" in text] for _, texts in results]
    assert [len(texts) for texts in rounding] == [1] + [0] * (len(results) - 1)
    assert re.match(rf"{_NAME} differs between {owner}s by \d", rounding[0][0])


class PerturbingTrial(ChangingTrial):
    """Adds what the rank's number makes of it to one weight, at the end of an epoch."""

    amount = 0.05

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {**super().build_callbacks(), "perturb": _Perturbing(self)}


class _Perturbing(pytorch.PyTorchCallback):
    def __init__(self, trial: PerturbingTrial) -> None:
        self._trial = trial

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        with torch.no_grad():
            self._trial.model.blocks[0].widen.weight.add_(self._trial.amount * rank())  # type: ignore[union-attr, index]  # torch types modules loosely


class RoundingTrial(PerturbingTrial):
    amount = 1e-7


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def run_all(runs: Sequence[tuple[type[ChangingTrial], Any]], directory: Path, batches: int) -> list[tuple[str, Any]]:
    """Trains each kind with its strategy. Returns what was refused, empty where nothing was, and this rank's
    warnings."""
    # So that each report has a check, however long it takes on a busy machine.
    drift._COST_RATIO = math.inf
    results = []
    for kind, parallelism in runs:
        warnings = _Warnings()
        log = logging.getLogger("gangline")
        log.addHandler(warnings)
        refusal, _ = run(kind, directory, batches, parallelism=parallelism)
        log.removeHandler(warnings)
        results.append((refusal, warnings.texts))
    return results


def test_replicas_that_drift_apart_end_with_the_parameters_name(tmp_path: Path) -> None:
    runs = [(kind, it) for kind in (PerturbingTrial, RoundingTrial) for it in _REPLICAS.values()]
    by_rank = run_gang(4, tmp_path / "gang", run_all, runs, tmp_path, _EPOCH + 2)
    by_run = list(zip(*by_rank, strict=True))
    for results in by_run[: len(_REPLICAS)]:
        _check_refused(list(results), "replica")
    for results in by_run[len(_REPLICAS) :]:
        _check_allowed(list(results), "replica")


class _TiedNet(Net):
    """Has one weight in two blocks."""

    def __init__(self, width: int = 8) -> None:
        super().__init__(width)
        first, second = self.blocks
        second.widen.weight = first.widen.weight  # type: ignore[union-attr]  # torch types modules loosely


class TiedTrial(PerturbingTrial):
    def make_model(self) -> nn.Module:
        return _TiedNet()


class TiedRoundingTrial(TiedTrial):
    amount = 1e-7


def test_copies_that_a_step_would_overwrite_or_two_stages_hold(tmp_path: Path) -> None:
    runs = [
        (PerturbingTrial, "zero1"),
        (TiedTrial, "pipeline"),
        (TiedRoundingTrial, "pipeline"),
    ]
    by_rank = run_gang(2, tmp_path / "gang", run_all, runs, tmp_path, _EPOCH + 2)
    divided, tied, rounded = (list(results) for results in zip(*by_rank, strict=True))
    _check_refused(divided, "rank")
    _check_refused(tied, "stage", "a weight")
    _check_allowed(rounded, "stage")


_OWN_RECORDS = "differs between {}s, as each fills it from its own records; {}. Fill it from the records of all ranks"
_RANK_0 = "validations and checkpoints have those of rank 0"
_IN_PASSES = "each forward pass gives all ranks those of rank 0, which validations and checkpoints have too"
_OF_TWO: dict[str, tuple[Any, str]] = {
    "ddp": ("ddp", _OWN_RECORDS.format("rank", _IN_PASSES)),
    "no broadcast": (
        {"strategy": "ddp", "broadcast_buffers": False},
        _OWN_RECORDS.format("rank", "each rank validates with its own, and checkpoints have those of rank 0"),
    ),
    "zero2": ("zero2", _OWN_RECORDS.format("rank", _RANK_0)),
}


def _buffers(texts: list[str]) -> list[str]:
    return [text for text in texts if text.startswith("buffer ")]


class _QueueBlock(Block):
    """Keeps means of what it has seen, the newest first. is_joint: of all ranks."""

    def __init__(self, width: int, is_joint: bool) -> None:
        super().__init__(width)
        self._is_joint = is_joint
        self.queue: torch.Tensor
        self.count: torch.Tensor
        self.register_buffer("queue", torch.zeros(4, width))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and torch.is_grad_enabled():
            key = x.detach().mean(0)
            if self._is_joint:
                dist.all_reduce(key)
            self.queue.copy_(torch.cat([key[None], self.queue[:-1]]))
            self.count.add_(1)
        return super().forward(x)


class _QueueNet(Net):
    def __init__(self, is_joint: bool) -> None:
        super().__init__()
        for number in range(len(self.blocks)):
            self.blocks[number] = _QueueBlock(8, is_joint)


class QueueTrial(ChangingTrial):
    is_joint = False

    def make_model(self) -> nn.Module:
        return _QueueNet(self.is_joint)


class JointQueueTrial(QueueTrial):
    is_joint = True


class NormTrial(ChangingTrial):
    """Whose running statistics are those of each rank's own records."""

    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def test_buffers_that_ranks_fill_apart_are_warned_of_once(tmp_path: Path) -> None:
    runs: list[Any] = [(QueueTrial, parallelism) for parallelism, _ in _OF_TWO.values()]
    others = [(JointQueueTrial, "ddp"), (NormTrial, "zero2")]
    chief, second = run_gang(2, tmp_path / "gang", run_all, [*runs, *others], tmp_path, 6)
    assert [refusal for refusal, _ in (*chief, *second)] == [""] * 2 * len([*runs, *others])
    for (_, text), (_, warnings) in zip(_OF_TWO.values(), chief, strict=False):
        (warning,) = _buffers(warnings)
        assert re.match(rf"buffer blocks\.[01]\.queue {re.escape(text)}", warning)
    # Of what all ranks fill alike, and of what has a warning of its own, there is none.
    assert [_buffers(warnings) for _, warnings in (*chief[len(runs) :], *second)] == [[]] * (len(others) + len(second))


def test_buffers_that_replicas_of_a_stage_fill_apart_are_warned_of(tmp_path: Path) -> None:
    runs = [(QueueTrial, _REPLICAS["whole replicas"])]
    by_rank = run_gang(4, tmp_path / "gang", run_all, runs, tmp_path, 6)
    (warning,) = _buffers(by_rank[0][0][1])
    text = _OWN_RECORDS.format("replica", "validations and checkpoints have those of the first replica")
    assert re.match(rf"buffer blocks\.[01]\.queue {re.escape(text)}", warning)


def save_apart(directory: Path) -> dict[str, torch.Tensor]:
    """Saves a trial whose ranks have other buffers each. Returns the model of this rank."""
    parallelism = {"strategy": "ddp", "broadcast_buffers": False}
    refusal, (model,) = run(QueueTrial, directory, 4, parallelism=parallelism, checkpoint_policy="all")
    assert not refusal
    return model


def test_a_checkpoint_has_the_buffers_of_rank_0_where_each_rank_keeps_its_own(tmp_path: Path) -> None:
    chief, second = run_gang(2, tmp_path / "gang", save_apart, tmp_path)
    (path,) = (path.parent for path in tmp_path.glob("checkpoints/*/metadata.json"))
    (saved,) = load_checkpoint(path)["models_state_dict"]
    names = ("blocks.0.queue", "blocks.1.queue")
    assert not any(torch.equal(chief[name], second[name]) for name in names)
    assert all(torch.equal(chief[name], saved[name]) for name in names)


@pytest.fixture(autouse=True)
def _stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
