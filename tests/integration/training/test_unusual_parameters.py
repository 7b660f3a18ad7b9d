"""Parameters out of the ordinary train as in one process, or are refused in one line: with sparse gradients, of several
types, and those that a trial draws or changes after context.wrap_model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gangline import pytorch
from tests.support.points_trial import Block, Net
from tests.support.unusual_trial import UnusualTrial, check_refused, check_same

_WHOLE = ["ddp", "zero1"]
_DIVIDED = ["zero2", "zero3"]
_ALL = [*_WHOLE, *_DIVIDED]
_PARTS = [*_DIVIDED, "pipeline"]


@pytest.fixture(autouse=True)
def _stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class SparseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8, sparse=True)
        self.head = nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.table((inputs[:, :2].abs() * 10).long() % 11).mean(dim=1))
        return out


class SparseTrial(UnusualTrial):
    def make_model(self) -> nn.Module:
        return SparseNet()


class SparseAdamTrial(SparseTrial):
    def make_optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        assert isinstance(model, SparseNet)
        table = torch.optim.SparseAdam(list(model.table.parameters()), lr=0.05)
        return [table, torch.optim.SGD(model.head.parameters(), lr=0.1)]


@pytest.mark.parametrize("kind", [SparseTrial, SparseAdamTrial], ids=lambda kind: kind.__name__)
def test_sparse_gradients_are_exchanged(tmp_path: Path, kind: type[UnusualTrial]) -> None:
    check_same(kind, tmp_path, _WHOLE)


@pytest.mark.parametrize(("size", "strategies"), [(2, _DIVIDED), (4, ["hsdp"])])
def test_sparse_gradients_are_not_divided(tmp_path: Path, size: int, strategies: list[str]) -> None:
    text = (
        "parallelism.model: {strategy} cannot divide the sparse gradients of SparseNet.table; make it with "
        "sparse=False, or use ddp or zero1"
    )
    check_refused(SparseTrial, tmp_path, strategies, text, size=size)


class MixedBlock(Block):
    def __init__(self, width: int, kind: torch.dtype) -> None:
        super().__init__(width)
        self.kind = kind
        self.norm.to(kind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x.to(self.kind)).to(x.dtype)
        out: torch.Tensor = x + self.narrow(functional.gelu(self.widen(normed)))
        return out


class MixedNet(Net):
    """Its norms and its head have another type of numbers than the rest."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(MixedBlock(8, kind) for _ in range(2))
        self.head.to(kind)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x.to(self.kind)) * self.mask
        return out


class DoubleTrial(UnusualTrial):
    kind = torch.float64

    def make_model(self) -> nn.Module:
        return MixedNet(self.kind)


class HalfTrial(DoubleTrial):
    kind = torch.bfloat16


class DoubleBlocksNet(nn.Module):
    """The blocks and the head have another type than the stem, which has more numbers than the head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()).double() for _ in range(2))
        self.head = nn.Linear(8, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).double()
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class DoubleBlocksTrial(UnusualTrial):
    def make_model(self) -> nn.Module:
        return DoubleBlocksNet()


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [(DoubleTrial, 1e-5), (HalfTrial, 3e-2), (DoubleBlocksTrial, 1e-5)],
    ids=["fp64", "bf16", "blocks"],
)
def test_parameters_of_several_types_train(tmp_path: Path, kind: type[UnusualTrial], tolerance: float) -> None:
    check_same(kind, tmp_path, _ALL, tolerance=tolerance)


def test_copies_of_shards_may_have_several_types(tmp_path: Path) -> None:
    check_same(DoubleTrial, tmp_path, ["hsdp"], size=4)


class TwoTypesLayer(nn.Module):
    """One module with parameters of two types."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 6))
        self.bias = nn.Parameter(torch.randn(3, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias.float())


class TwoTypesTrial(UnusualTrial):
    def make_model(self) -> nn.Module:
        return nn.Sequential(TwoTypesLayer())


class TwoTypesBlocksTrial(UnusualTrial):
    """Several layers of one class in a row are blocks, which are gathered one at a time."""

    def make_model(self) -> nn.Module:
        return nn.Sequential(TwoTypesLayer(), nn.Linear(3, 6), TwoTypesLayer())


@pytest.mark.parametrize("kind", [TwoTypesTrial, TwoTypesBlocksTrial], ids=lambda kind: kind.__name__)
def test_one_module_with_several_types_is_not_divided(tmp_path: Path, kind: type[UnusualTrial]) -> None:
    text = (
        "parallelism.model: {strategy} cannot divide Sequential.0, which has parameters of float32 and float64 itself; "
        "give these parameters one type, freeze those of another type before context.wrap_model, or put them into a "
        "module of their own that shares none of them and is called, or use ddp or zero1"
    )
    check_refused(kind, tmp_path, _DIVIDED, text)
    check_same(kind, tmp_path / "whole", _WHOLE)


class FrozenTypeTrial(UnusualTrial):
    """Frozen parameters have another type than trained ones of the same modules: blocks, and the model itself."""

    def make_model(self) -> nn.Module:
        model = nn.Sequential(TwoTypesLayer(), nn.Linear(3, 6), TwoTypesLayer())
        for index in (0, 2):
            model[index].bias.requires_grad_(False)
        model.extra = nn.Parameter(torch.ones(2, dtype=torch.float64), requires_grad=False)
        model.shift = nn.Parameter(torch.zeros(3))
        model.register_forward_hook(lambda module, _, output: output + module.shift * module.extra.sum().float())
        return model


def test_frozen_parameters_of_a_module_may_have_another_type(tmp_path: Path) -> None:
    check_same(FrozenTypeTrial, tmp_path, _ALL)


class FunctionalNet(SparseNet):
    """Nothing says before the backward pass that its gradients are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table.sparse = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        rows = functional.embedding((inputs[:, :2].abs() * 10).long() % 11, self.table.weight, sparse=True)
        out: torch.Tensor = self.head(rows.mean(dim=1))
        return out


class FunctionalSparseTrial(UnusualTrial):
    def make_model(self) -> nn.Module:
        return FunctionalNet()


def test_sparse_gradients_of_functions_are_refused(tmp_path: Path) -> None:
    text = (
        "pytorch.sparse_gradient: a parameter has a sparse gradient that no module has announced, so {strategy} cannot "
        "exchange it; use torch.nn.Embedding(sparse=True) in the place of a function with sparse=True, or leave "
        "sparse=True out"
    )
    check_refused(FunctionalSparseTrial, tmp_path, _WHOLE, text)
    divided = (
        "pytorch.sparse_gradient: a parameter has a sparse gradient, which {strategy} cannot divide; leave sparse=True "
        "out, or use ddp or zero1"
    )
    check_refused(FunctionalSparseTrial, tmp_path / "divided", _DIVIDED, divided)


class OrthogonalNet(Net):
    """Has matrices that are higher, wider and of more dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.mix(super().forward(x).unsqueeze(2)).squeeze(2)
        return out


class OrthogonalTrial(UnusualTrial):
    def make_model(self) -> nn.Module:
        return OrthogonalNet()

    def prepare(self) -> None:
        torch.manual_seed(9)
        for parameter in self.model.parameters():
            if parameter.dim() > 1:
                nn.init.orthogonal_(parameter, gain=1.5)


class SparseInitTrial(OrthogonalTrial):
    """The other initialisers that do not draw number by number."""

    def prepare(self) -> None:
        torch.manual_seed(9)
        assert isinstance(self.model, OrthogonalNet)
        block = self.model.blocks[0]
        assert isinstance(block, Block)
        nn.init.sparse_(block.widen.weight, 0.25)
        nn.init.eye_(block.narrow.weight)
        nn.init.dirac_(self.model.mix.weight)
        nn.init.trunc_normal_(self.model.stem.weight, std=0.2)


@pytest.mark.parametrize("kind", [OrthogonalTrial, SparseInitTrial], ids=lambda kind: kind.__name__)
def test_late_initialisation_of_whole_matrices(tmp_path: Path, kind: type[UnusualTrial]) -> None:
    check_same(kind, tmp_path, [*_WHOLE, *_PARTS])


def test_late_initialisation_of_whole_matrices_on_copies_of_shards(tmp_path: Path) -> None:
    check_same(OrthogonalTrial, tmp_path, ["hsdp"], size=4)


class Clamping(pytorch.PyTorchCallback):
    """Changes the model at every moment of a validation."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @torch.no_grad()
    def _shrink(self, amount: float) -> None:
        for parameter in self.model.parameters():
            parameter.mul_(amount)

    def on_validation_start(self) -> None:
        self._shrink(0.9)

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        self._shrink(0.8)

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.clamp_(-0.2, 0.2)


class ClampingTrial(UnusualTrial):
    validation_period = pytorch.Batch(2)

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"clamping": Clamping(self.model)}


class WholeClampingTrial(ClampingTrial):
    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        return {"error": sum(float(functional.mse_loss(self.model(inputs), two)) for inputs, two in data_loader)}


class ClampAfterPassTrial(UnusualTrial):
    """Changes the model between a pass without gradients and the next one."""

    def after_step(self) -> None:
        with torch.no_grad():
            self.model(torch.ones(2, 6))
            for parameter in self.model.parameters():
                parameter.clamp_(-0.2, 0.2)


@pytest.mark.parametrize(
    "kind", [ClampingTrial, WholeClampingTrial, ClampAfterPassTrial], ids=lambda kind: kind.__name__
)
def test_parameters_changed_in_place_stay_changed(tmp_path: Path, kind: type[UnusualTrial]) -> None:
    check_same(kind, tmp_path, _ALL)
