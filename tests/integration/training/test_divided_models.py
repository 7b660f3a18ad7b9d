"""Trials that read or change parameters and gradients of a divided model train as in one process, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel

from tests.support.changing_trial import rank
from tests.support.gang import run_gang
from tests.support.once import make_once
from tests.support.points_trial import Block, Net
from tests.support.unusual_trial import State, UnusualTrial, run

Kind = type[UnusualTrial]


class ReadNumberTrial(UnusualTrial):
    """Clips by a norm that it reads number by number."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        self.context.backward(loss)
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        norm = sum(float(gradient.norm()) ** 2 for gradient in gradients) ** 0.5
        for gradient in gradients:
            gradient.mul_(min(1.0, 0.1 / norm))
        self.context.step_optimizer(self.optimizers[0])
        return {"loss": loss}


class ReadRowTrial(UnusualTrial):
    """Scales its stem by what it reads from rows of it."""

    @torch.no_grad()
    def after_step(self) -> None:
        weight: Any = self.model.get_parameter("stem.weight")
        weight.mul_(1 - 0.1 * float(weight[1].norm()) - 0.1 * weight[2, 3].item() - 0.01 * float(weight[1:4].sum()))


class HookedTrial(UnusualTrial):
    """Has hooks of parameters from before and after it wraps the model. One is removed again."""

    def make_model(self) -> nn.Module:
        model = Net()
        for parameter in model.blocks.parameters():
            parameter.register_hook(lambda gradient: 0.3 * gradient)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.handle = model.stem.weight.register_hook(lambda gradient: 0.5 * gradient)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return model

    def prepare(self) -> None:
        weight: Any = self.model.get_parameter("head.weight")
        mask = torch.linspace(0, 1, weight.numel()).view(weight.shape)
        weight.register_hook(lambda gradient: gradient * mask)

    def after_step(self) -> None:
        if self.context.current_train_batch() == 2:
            self.handle.remove()


class ClearingTrial(UnusualTrial):
    """Drops the gradients of the first batch of each step, of two batches: once by the optimizer, once by the model."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        self.context.backward(loss)
        if batch_idx % 4 == 2:
            self.optimizers[0].zero_grad()
        if batch_idx % 4 == 0:
            self.model.zero_grad()
        self.context.step_optimizer(self.optimizers[0])
        return {"loss": loss}


class OutsideNet(Net):
    """Uses a block's parameter outside of the block."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x * self.blocks[1].norm.weight) * self.mask  # type: ignore[union-attr,operator]  # torch types modules loosely
        return out


class OutsideTwiceTrial(UnusualTrial):
    """Calls such a model twice."""

    def make_model(self) -> nn.Module:
        return OutsideNet()

    def run_model(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.model(inputs) + self.model(-2 * inputs)
        return outputs


class LatePenaltyTrial(UnusualTrial):
    """Uses a parameter outside of the model, and makes another backward pass before that of this loss."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        loss = loss + 0.1 * self.model.get_parameter("head.weight").pow(3).sum()
        self.context.backward(functional.mse_loss(self.model(-inputs), targets))
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizers[0])
        return {"loss": loss}


class PenaltyFirstTrial(UnusualTrial):
    """Makes a penalty on gradients before the other calls of its model, as a critic does. One of these has no
    gradients."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        between = (0.5 * inputs).requires_grad_(True)
        (slope,) = torch.autograd.grad(self.model(between).square().sum(), between, create_graph=True)
        with torch.no_grad():
            offset = self.model(torch.zeros(2, 6)).mean()
        loss = functional.mse_loss(self.model(inputs) - self.model(-inputs), targets + offset)
        loss = loss + (slope.norm(dim=1) - 1).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizers[0], lambda chosen: self.context.clip_grad_norm(chosen, 0.5))
        return {"loss": loss}


class SpectralTrial(UnusualTrial):
    """Its weight is computed, with vectors that move each time."""

    def make_model(self) -> nn.Module:
        model = Net()
        parametrizations.spectral_norm(model.head)
        return model


class Scaled(nn.Module):
    """A block with a factor without a dimension, one of one number, and a parameter without numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Block(8)
        self.gate = nn.Parameter(torch.tensor(0.7))
        self.single = nn.Parameter(torch.ones(1))
        self.empty = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.gate * self.inner(x) * self.single + self.empty.sum()
        return out


class ScalarNet(Net):
    """Nothing outside of its blocks can be divided but the stem and the head. Its scale is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Scaled() for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(2.0).log())
        self.fixed = nn.Parameter(torch.tensor(1.5), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = super().forward(x) * self.scale.exp() * self.fixed + self.scale
        return out


class ScalarTrial(UnusualTrial):
    """Also reads, changes and copies its parameters."""

    def make_model(self) -> nn.Module:
        return ScalarNet()

    def prepare(self) -> None:
        self.average = AveragedModel(self.model)
        self.copies.append(self.average.module)

    def after_step(self) -> None:
        self.average.update_parameters(self.model)
        with torch.no_grad():
            scale: Any = self.model.get_parameter("scale")
            scale.clamp_(0, 4.6052)
            self.model.get_parameter("blocks.1.gate").mul_(1.0 + 0.1 * float(scale))
            self.model(torch.zeros(2, 6))


class ScalarStepTrial(ScalarTrial):
    """Aggregates batches, clears gradients through the model, and clips and steps all parameters in one operation."""

    def make_optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)]

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        if batch_idx == 2:
            # What the batch before has left.
            self.model.zero_grad()
            self.optimizers[0].zero_grad()
        loss = functional.mse_loss(self.model(inputs), targets)
        self.context.backward(loss)
        clip = torch.nn.utils.clip_grad_norm_
        self.context.step_optimizer(self.optimizers[0], lambda chosen: clip(list(chosen), 0.5, foreach=True))
        return {"loss": loss}


class ScalarWholeStepTrial(ScalarTrial):
    """Its optimizer steps whole tensors, and divides by their numbers of elements."""

    def make_optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adafactor([each for each in model.parameters() if each.numel()], lr=0.01)]


class Stateful(nn.Module):
    """A block that uses and changes a counter, a number, a generator and the vectors of a spectral norm."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Block(8)
        parametrizations.spectral_norm(self.inner.widen)
        self.register_buffer("count", torch.zeros(()))
        self.count: torch.Tensor
        self.steps = 0
        self.own = torch.Generator().manual_seed(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.ones(8)
        if self.training:
            self.count += 1
            self.steps += 1
            noise += 0.1 * torch.rand(8, generator=self.own)
        out: torch.Tensor = x + torch.tanh(self.inner(x) * noise) / (1 + self.count.clone()) / (1 + self.steps)
        return out


class StatefulTrial(UnusualTrial):
    """Recomputes blocks with state; the reference does not."""

    def make_model(self) -> nn.Module:
        model = Net()
        model.blocks = nn.ModuleList(Stateful() for _ in range(2))
        return model


_SAME: list[Kind] = [
    ReadNumberTrial,
    ReadRowTrial,
    HookedTrial,
    ClearingTrial,
    SpectralTrial,
    OutsideTwiceTrial,
    LatePenaltyTrial,
    PenaltyFirstTrial,
    ScalarTrial,
    ScalarStepTrial,
    ScalarWholeStepTrial,
    StatefulTrial,
]


class ChangedRowTrial(UnusualTrial):
    @torch.no_grad()
    def after_step(self) -> None:
        weight: Any = self.model.get_parameter("stem.weight")
        weight[5].mul_(0.5)


class OldParameterTrial(UnusualTrial):
    """Has a list of parameters from before wrap_model."""

    def make_model(self) -> nn.Module:
        model = Net()
        biases = [model.head.bias]
        model.register_forward_hook(lambda module, _, output: output * biases[0].sum())
        return model


class SharedParameterTrial(UnusualTrial):
    """Wraps two models that share a parameter."""

    def make_model(self) -> nn.Module:
        self.second: Any = Net()
        model = Net()
        self.second.head.bias = model.head.bias
        return model

    def prepare(self) -> None:
        self.context.wrap_model(self.second)


class ClampingBlock(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.widen.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


class DataClampingBlock(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.widen.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


class ClampingForwardTrial(UnusualTrial):
    kind: type[Block] = ClampingBlock

    def make_model(self) -> nn.Module:
        model = Net()
        model.blocks = nn.ModuleList(self.kind(8) for _ in range(2))
        return model


class DataClampingForwardTrial(ClampingForwardTrial):
    kind = DataClampingBlock


class ReplacedTrial(UnusualTrial):
    """Calls the model with halves of its parameters."""

    def run_model(self, inputs: torch.Tensor) -> torch.Tensor:
        halves = {name: 0.5 * parameter for name, parameter in self.model.named_parameters()}
        outputs: torch.Tensor = functional_call(self.model, halves, (inputs,))
        return outputs


class DerivedTrial(UnusualTrial):
    def run_model(self, inputs: torch.Tensor) -> torch.Tensor:
        slope: torch.Tensor = torch.func.grad(lambda x: self.model(x).sum())(inputs)
        return self.model(inputs) + slope.sum()  # type: ignore[no-any-return]  # torch types modules loosely


class ForkedBlock(Block):
    """Each rank uses a layer of its own, of the same size."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        out: torch.Tensor = self.left(x) if rank() == 0 else self.right(x)
        return out


class ForkedTrial(ClampingForwardTrial):
    kind = ForkedBlock


class WeightLossTrial(UnusualTrial):
    """Makes a backward pass for a penalty on its parameters."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        penalty = torch.stack([parameter.pow(2).sum() for parameter in self.model.parameters()]).sum()
        self.context.backward(penalty)
        return {}


class AssignedRowTrial(UnusualTrial):
    @torch.no_grad()
    def after_step(self) -> None:
        weight: Any = self.model.get_parameter("stem.weight")
        weight[5] = 0.5


_REFUSED: dict[Kind, str] = {
    ChangedRowTrial: "parallelism.part_changed: mul_ changes rows or other parts of a divided parameter",
    AssignedRowTrial: "parallelism.part_operation: {strategy} divides parameters and gradients over ranks",
    OldParameterTrial: "parallelism.old_parameter: Net.head.bias was used as it was before context.wrap_model",
    SharedParameterTrial: "parallelism.model: Net.head.bias is Net.head.bias of a model that was wrapped before",
    ClampingForwardTrial: "parallelism.whole_changed: Net.blocks.",
    DataClampingForwardTrial: "parallelism.whole_changed: Net.blocks.",
    ReplacedTrial: "parallelism.parameter_replaced: ",
    DerivedTrial: "parallelism.transform: a wrapped model was called in a derivative of torch.func",
    ForkedTrial: "parallelism.blocks_differ: this rank reduces ",
    WeightLossTrial: "pytorch.shard_used: context.backward got a loss that uses parameters of which",
}
# hsdp needs four ranks, which take longer.
_ON_FOUR: list[Kind] = [
    ReadNumberTrial,
    HookedTrial,
    PenaltyFirstTrial,
    ScalarTrial,
    ChangedRowTrial,
    ForkedTrial,
]
_PLACES = [
    *((kind, strategy, 2) for kind in (*_SAME, *_REFUSED) for strategy in ("zero2", "zero3")),
    *((kind, "hsdp", 4) for kind in _ON_FOUR),
]
# What zero3 refuses: the parameter is divided where it is used.
_OUTSIDE = (OutsideTwiceTrial, "zero3", 2)
Outcome = tuple[str, list[State]]
# By the name of the trial's class and the strategy.
Outcomes = dict[tuple[str, str], Outcome]
# The outcomes in one process, and those of each rank by the number of ranks.
Trained = tuple[Outcomes, dict[int, list[Outcomes]]]


def train_all(directory: Path, strategies: list[str], kinds: list[type[UnusualTrial]]) -> Outcomes:
    """Trains each kind under each strategy. Some aggregate two batches."""
    outcomes: Outcomes = {}
    for kind in kinds:
        aggregated = kind in (ClearingTrial, ScalarStepTrial)
        more: dict[str, Any] = {"optimizations": {"aggregation_frequency": 2}} if aggregated else {}
        for strategy in strategies:
            section: Any = strategy
            if kind is StatefulTrial and strategy != "none":
                section = {"strategy": strategy, "activation_checkpointing": "blocks"}
            outcomes[kind.__name__, strategy] = run(kind, directory, 6, parallelism=section, **more)
    return outcomes


def _train(directory: Path) -> Trained:
    directory.mkdir()
    arguments: dict[int, tuple[list[str], list[Kind]]] = {
        2: (["zero2", "zero3"], [*_SAME, *_REFUSED]),
        4: (["hsdp"], _ON_FOUR),
    }
    by_size = {
        size: run_gang(size, directory / f"gang{size}", train_all, directory, *rest) for size, rest in arguments.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        return train_all(directory, ["none"], _SAME), by_size


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return make_once(tmp_path_factory, "divided_models", _train)


@pytest.mark.parametrize(
    ("kind", "strategy", "size"), [place for place in _PLACES if place[0] in _SAME and place != _OUTSIDE]
)
def test_parts_are_read_and_changed_as_in_one_process(trained: Trained, kind: Kind, strategy: str, size: int) -> None:
    alone, by_size = trained
    refusal, expected = alone[kind.__name__, "none"]
    assert refusal == ""
    for outcomes in by_size[size]:
        refusal, models = outcomes[kind.__name__, strategy]
        assert refusal == ""
        for model, wanted in zip(models, expected, strict=True):
            torch.testing.assert_close(_in_double(model), _in_double(wanted), rtol=0, atol=1e-5)


def _in_double(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.double() for name, value in model.items()}


@pytest.mark.parametrize(("kind", "strategy", "size"), [place for place in _PLACES if place[0] in _REFUSED])
def test_what_parts_cannot_do_is_refused(trained: Trained, kind: Kind, strategy: str, size: int) -> None:
    for outcomes in trained[1][size]:
        refusal, _ = outcomes[kind.__name__, strategy]
        assert refusal.startswith(_REFUSED[kind].format(strategy=strategy)), refusal
        # The way out.
        assert "; " in refusal
        assert "\n" not in refusal


def test_ranks_that_use_other_parameters_of_one_size(trained: Trained) -> None:
    for outcomes in trained[1][2]:
        refusal, _ = outcomes["ForkedTrial", "zero3"]
        assert "while another reduces as many of other parameters there, but ranks that divide a model must" in refusal
