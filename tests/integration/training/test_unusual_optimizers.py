"""Optimizers out of the ordinary step as in one process, or are refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from gangline import pytorch
from tests.support.gang import run_gang
from tests.support.own_optimizer import Lamb, Lars, Lion, OwnOptimizer, Wrapping
from tests.support.unusual_trial import State, UnusualTrial, check_refused, check_same, difference, run

_WHOLE = ["ddp", "zero1"]
_DIVIDED = ["zero2", "zero3"]
_PARTS = [*_DIVIDED, "pipeline"]


@pytest.fixture(autouse=True)
def _stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class AdafactorTrial(UnusualTrial):
    def make_optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adafactor(model.parameters(), lr=0.05)]


class MuonTrial(UnusualTrial):
    def make_optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        weights = [parameter for parameter in model.parameters() if parameter.dim() == 2]
        others = [parameter for parameter in model.parameters() if parameter.dim() != 2]
        return [torch.optim.Muon(weights, lr=0.02), torch.optim.SGD(others, lr=0.1)]


class Slow(OwnOptimizer):
    """Keeps a slow copy of each parameter, as Lookahead does."""

    def change(self, parameter: nn.Parameter, state: dict[str, Any]) -> torch.Tensor:
        assert parameter.grad is not None
        slow = state.setdefault("slow", parameter.clone())
        slow.lerp_(parameter - 0.1 * parameter.grad, 0.5)
        out: torch.Tensor = parameter.grad + 0.5 * (parameter - slow)
        return out


class EightBit(OwnOptimizer):
    """Keeps its moment in bytes, with one scale for a tensor."""

    def change(self, parameter: nn.Parameter, state: dict[str, Any]) -> torch.Tensor:
        assert parameter.grad is not None
        bits, scale = state.get("bits", torch.zeros_like(parameter, dtype=torch.int8)), state.get("scale", 0.0)
        moment = 0.9 * scale * bits.to(parameter.dtype) + parameter.grad
        state["scale"] = moment.abs().max() / 127
        state["bits"] = (moment / state["scale"]).round().to(torch.int8)
        return torch.as_tensor(moment)


class Unchecked(Lion):
    """Takes for granted that each parameter has a gradient."""

    def begin(self) -> None:
        self.largest = max(
            float(parameter.grad.abs().max()) for group in self.param_groups for parameter in group["params"]
        )


class LionTrial(UnusualTrial):
    kind: type[OwnOptimizer] = Lion

    def make_optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [self.kind(model.parameters())]


class LarsTrial(LionTrial):
    kind = Lars


class SlowTrial(LionTrial):
    kind = Slow


class EightBitTrial(LionTrial):
    kind = EightBit


class UncheckedTrial(LionTrial):
    kind = Unchecked


@pytest.mark.parametrize(
    "kind",
    [
        AdafactorTrial,
        MuonTrial,
        LarsTrial,
        LionTrial,
        SlowTrial,
        EightBitTrial,
        UncheckedTrial,
    ],
    ids=lambda kind: kind.__name__,
)
def test_any_optimizer_steps_as_in_one_process(tmp_path: Path, kind: type[UnusualTrial]) -> None:
    # Muon computes in bf16, where rounding of its input grows.
    check_same(kind, tmp_path, [*_WHOLE, *_PARTS], tolerance=1e-2 if kind is MuonTrial else 1e-5)


@pytest.mark.parametrize("kind", [AdafactorTrial, LarsTrial], ids=lambda kind: kind.__name__)
def test_whole_tensors_are_stepped_on_copies_of_shards(tmp_path: Path, kind: type[UnusualTrial]) -> None:
    check_same(kind, tmp_path, ["hsdp"], size=4)


class Saved(pytorch.PyTorchCallback):
    """ids: of the checkpoints, on the chief."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.ids.append(uuid)


class KeptAdafactorTrial(AdafactorTrial):
    """Has an average of its model in its checkpoints, too."""

    def prepare(self) -> None:
        self.averaged = self.context.wrap_model(AveragedModel(self.model))
        self.saved = Saved()

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"saved": self.saved}

    def after_step(self) -> None:
        assert isinstance(self.averaged, AveragedModel)
        self.averaged.update_parameters(self.model)

    def outcome(self) -> str:
        """The newest checkpoint."""
        return (self.saved.ids or [""])[-1]


def run_on(
    kind: type[UnusualTrial], directory: Path, strategy: str, latest: str, batches: int
) -> tuple[str, list[State]]:
    """Trains from a checkpoint, or from the start where its id is empty."""
    return run(kind, directory, batches, latest or None, parallelism=strategy)


@pytest.mark.parametrize(("first", "second"), [("zero3", "zero3"), ("zero3", "ddp"), ("ddp", "zero2")])
def test_whole_state_of_divided_parameters_goes_on_elsewhere(tmp_path: Path, first: str, second: str) -> None:
    kind = KeptAdafactorTrial
    (tmp_path / "alone").mkdir()
    _, alone = run_on(kind, tmp_path / "alone", "none", "", 6)
    ((saved, _), _) = run_gang(2, tmp_path / "first", run_on, kind, tmp_path, first, "", 3)
    assert saved
    for _, models in run_gang(2, tmp_path / "second", run_on, kind, tmp_path, second, saved, 6):
        assert difference(models, alone) <= 1e-5


class Sam(OwnOptimizer):
    """Steps by a gradient that it adds all gradients to, by their norm."""

    def begin(self) -> None:
        gradients = [
            parameter.grad for group in self.param_groups for parameter in group["params"] if parameter.grad is not None
        ]
        self.radius = 0.05 / float(torch.stack([gradient.norm() for gradient in gradients]).norm())

    def change(self, parameter: nn.Parameter, state: dict[str, Any]) -> torch.Tensor:
        assert parameter.grad is not None
        out: torch.Tensor = parameter.grad * (1 + self.radius)
        return out


class LambTrial(LionTrial):
    kind = Lamb


class SamTrial(LionTrial):
    kind = Sam


def test_optimizer_that_joins_parameters_is_not_divided(tmp_path: Path) -> None:
    text = (
        "parallelism.optimizer: Lamb updates a parameter differently when it holds other parameters too, but with "
        "{strategy} each rank steps a part of the parameters; use ddp"
    )
    for kind in (LambTrial, SamTrial):
        directory = tmp_path / kind.__name__
        check_refused(kind, directory, ["zero1", *_PARTS], text.replace("Lamb", kind.kind.__name__))
        check_same(kind, directory / "whole", ["ddp"])


class WrappingTrial(LionTrial):
    kind = Wrapping


def test_optimizer_around_another_is_not_divided(tmp_path: Path) -> None:
    text = (
        "parallelism.optimizer: {strategy} divides an optimizer's work over ranks and could not find out whether "
        "Wrapping updates each parameter by itself (its attribute base may hold parameters); use ddp"
    )
    check_refused(WrappingTrial, tmp_path, ["zero1", *_PARTS], text)
