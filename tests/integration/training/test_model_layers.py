"""Layers that need all ranks or a first pass, and weights that are loaded after context.wrap_model, train as in one
process, or are refused in one line with a way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gangline import pytorch
from tests.support.changing_trial import (
    ChangingTrial,
    check_refused,
    check_same,
    penalised_batch,
    rank,
    refusals_of,
    run_many,
)
from tests.support.points_trial import Net

_WHOLE = ["ddp", "zero1"]
_DIVIDED = ["zero2", "zero3"]
_ALL = [*_WHOLE, *_DIVIDED]
# hsdp needs four ranks.
_SIZES = [(2, _ALL), (4, ["hsdp"])]


@pytest.fixture(autouse=True)
def _stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class NormedBlock(nn.Module):
    """Over one dimension and over three, with and without learnt factors and tracked statistics."""

    def __init__(self, affine: bool, momentum: float | None, tracks: bool = True) -> None:
        super().__init__()
        self.flat = nn.BatchNorm1d(8, affine=affine, momentum=momentum, track_running_stats=tracks)
        self.line = nn.BatchNorm1d(2)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.flat(self.linear(x))
        out: torch.Tensor = torch.tanh(self.line(x.view(-1, 2, 4)).reshape(-1, 8))
        return out


class NormedNet(nn.Module):
    """A layer for the inputs themselves, which have no gradient, and layers for what a layer has made."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm1d(6)
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.ModuleList([NormedBlock(True, 0.1), NormedBlock(False, None), NormedBlock(True, 0.3, False)])
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(self.first(x))
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class SyncNormTrial(ChangingTrial):
    def make_model(self) -> nn.Module:
        model: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(NormedNet())  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return model


@pytest.mark.parametrize(("size", "strategies"), _SIZES)
def test_statistics_of_all_ranks_on_the_cpu(tmp_path: Path, size: int, strategies: list[str]) -> None:
    check_same(SyncNormTrial, tmp_path, strategies, size)


class PenalisedNormTrial(SyncNormTrial):
    """Differentiates through the statistics twice."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        return penalised_batch(self, batch)


def test_statistics_of_all_ranks_are_differentiated_twice(tmp_path: Path) -> None:
    check_same(PenalisedNormTrial, tmp_path, _WHOLE)


class LateSyncNormTrial(ChangingTrial):
    """Converts a model that is wrapped already."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        nn.SyncBatchNorm.convert_sync_batchnorm(self.model)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def make_model(self) -> nn.Module:
        return NormedNet()


def test_layers_that_are_converted_too_late(tmp_path: Path) -> None:
    text = (
        "parallelism.batch_norm: a SyncBatchNorm layer was put into the model after it was wrapped, so it runs on GPUs "
        "only; call torch.nn.SyncBatchNorm.convert_sync_batchnorm before context.wrap_model"
    )
    check_refused(LateSyncNormTrial, tmp_path, ["ddp", "zero3"], 2, text)


class OwnSyncNorm(nn.SyncBatchNorm):
    pass


class OwnSyncNormTrial(ChangingTrial):
    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 3), OwnSyncNorm(3))


def test_class_that_derives_from_sync_batch_norm(tmp_path: Path) -> None:
    text = (
        "parallelism.batch_norm: OwnSyncNorm derives from torch.nn.SyncBatchNorm, which torch runs on GPUs only; use "
        "torch.nn.SyncBatchNorm itself, or GroupNorm"
    )
    check_refused(OwnSyncNormTrial, tmp_path, ["ddp", "zero3"], 2, text)


class LazyTrial(ChangingTrial):
    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Tanh(), nn.LazyLinear(3))


@pytest.mark.parametrize(("size", "strategies"), _SIZES)
def test_lazy_modules_without_shapes_are_refused(tmp_path: Path, size: int, strategies: list[str]) -> None:
    text = (
        "parallelism.lazy_model: 0.weight and 7 more of Sequential have no shape before a first pass, as lazy modules "
        "leave it open, so ranks cannot share them; run a batch through the model before context.wrap_model, as in "
        "model(torch.zeros(2, 3, 32, 32)) under torch.no_grad()"
    )
    check_refused(LazyTrial, tmp_path, strategies, size, text)


class RunLazyTrial(LazyTrial):
    """Follows the advice."""

    def make_model(self) -> nn.Module:
        model = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(3))
        with torch.no_grad():
            model(torch.zeros(2, 6))
        return model


def test_lazy_modules_that_have_run_train_as_in_one_process(tmp_path: Path) -> None:
    check_same(RunLazyTrial, tmp_path, _ALL)


class LoneLazyTrial(ChangingTrial):
    """Whose optimizer does not look at shapes."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(3)))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": functional.mse_loss(self.model(batch[0]), batch[1])}


def test_lazy_modules_train_on_one_slot(tmp_path: Path) -> None:
    ((refusal, _),) = run_many(LoneLazyTrial, tmp_path, ["ddp"])
    assert refusal == ""


class LoadingTrial(ChangingTrial):
    """Loads weights into the wrapped model, all at first and those of one block later, after a pass without gradients
    that leaves whole parameters where they were gathered."""

    assign = False

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        if self.loads():
            self.model.load_state_dict(_other_state(), assign=self.assign)

    @staticmethod
    def loads() -> bool:
        return True

    @staticmethod
    def change(trial: Any, batch_idx: int) -> None:
        if batch_idx == 3 and trial.loads():
            with torch.no_grad():
                trial.model(torch.zeros(2, 6))
            state = {name: 0.5 * value for name, value in _other_state().items() if name.startswith("blocks.1.")}
            trial.model.blocks[1].load_state_dict({name[9:]: value for name, value in state.items()})


def _other_state() -> dict[str, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(21)
        return Net().state_dict()


@pytest.mark.parametrize(("size", "strategies"), _SIZES)
def test_weights_loaded_into_a_wrapped_model(tmp_path: Path, size: int, strategies: list[str]) -> None:
    check_same(LoadingTrial, tmp_path, strategies, size)


class ChiefLoadingTrial(LoadingTrial):
    @staticmethod
    def loads() -> bool:
        return rank() == 0


def test_weights_that_the_chief_alone_loads_are_refused(tmp_path: Path) -> None:
    refusals = refusals_of(ChiefLoadingTrial, tmp_path, _ALL)
    for strategy in _WHOLE:
        for refusal in refusals[strategy]:
            assert refusal.startswith("training.drift: "), refusal
            assert " at batch 0, so each rank trains a model of its own; there is no checkpoint yet. " in refusal
            assert "load and change parameters in the same way on all ranks" in refusal
    for strategy in _DIVIDED:
        assert refusals[strategy] == [
            "parallelism.loaded: load_state_dict was called after context.wrap_model with other values on some ranks "
            f"than on others (this rank loaded {count} parameters), so {strategy} would train a mixture of them; load "
            "the same file on all ranks, or load it before context.wrap_model"
            for count in (16, 0)
        ]


class AssignedLoadingTrial(LoadingTrial):
    assign = True


class LateAssignedLoadingTrial(ChangingTrial):
    """After the optimizer was made."""

    @staticmethod
    def change(trial: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            trial.model.load_state_dict(_other_state(), assign=True)


def test_weights_that_take_the_place_of_parameters_are_refused(tmp_path: Path) -> None:
    changed = (
        "parallelism.model_changed: Net had 16 parameters when it was wrapped and has others now; tie, add and replace "
        "parameters before context.wrap_model, and leave assign=True out of load_state_dict"
    )
    assigned = (
        "parallelism.assigned: load_state_dict(assign=True) would put other parameters in the place of those that "
        "STRATEGY has divided; leave assign out, or load before context.wrap_model"
    )
    for kind in (AssignedLoadingTrial, LateAssignedLoadingTrial):
        check_refused(kind, tmp_path / kind.__name__, _WHOLE, 2, changed)
        check_refused(kind, tmp_path / f"{kind.__name__}_divided", _DIVIDED, 2, assigned)
