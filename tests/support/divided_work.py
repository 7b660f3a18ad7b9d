"""Trials that use parameters and gradients as parts of a divided model could get them wrong, without an error. The same
work in one process is the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel

from tests.support.changing_work import rank
from tests.support.points_trial import Block, Net
from tests.support.unusual_work import State, UnusualTrial, run

Outcome = tuple[str, list[State]]
# By the name of the trial's class and the strategy.
Outcomes = dict[tuple[str, str], Outcome]


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


class ChangedRowTrial(UnusualTrial):
    @torch.no_grad()
    def after_step(self) -> None:
        weight: Any = self.model.get_parameter("stem.weight")
        weight[5].mul_(0.5)


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


class ClearingTrial(UnusualTrial):
    """Drops the gradients of each third batch, in which others are aggregated, and of each fourth by the model."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        if batch_idx % 4 == 3:
            self.model.zero_grad()
        self.context.backward(loss)
        if batch_idx % 3 == 2:
            self.optimizers[0].zero_grad()
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


class WeightLossTrial(UnusualTrial):
    """Makes a backward pass for a penalty on its parameters."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        penalty = torch.stack([parameter.pow(2).sum() for parameter in self.model.parameters()]).sum()
        self.context.backward(penalty)
        return {}


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


class AssignedRowTrial(UnusualTrial):
    @torch.no_grad()
    def after_step(self) -> None:
        weight: Any = self.model.get_parameter("stem.weight")
        weight[5] = 0.5


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
