"""Work of a gang's ranks in tests of models that a trial changes after it has wrapped them. The same work in one
process is the reference.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from gangline import pytorch
from gangline.errors import GanglineError
from tests.support.points_trial import Net, PointsTrial

State = dict[str, torch.Tensor]


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


class ChangingTrial(PointsTrial):
    """A trial with SGD whose model a test changes."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        torch.manual_seed(4)
        super().__init__(context)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.change(self, batch_idx)
        return super().train_batch(batch, epoch_idx, batch_idx)

    @staticmethod
    def change(trial: Any, batch_idx: int) -> None:
        """Before each forward pass."""


class FrozenHeadTrial(ChangingTrial):
    """Begins with a head that is frozen and thaws it at the fourth batch."""

    def make_model(self) -> nn.Module:
        model = Net()
        model.head.requires_grad_(False)
        return model

    @staticmethod
    def change(trial: Any, batch_idx: int) -> None:
        if batch_idx == 3:
            trial.model.head.requires_grad_(True)


class FrozenBlockTrial(FrozenHeadTrial):
    def make_model(self) -> nn.Module:
        model = Net()
        model.blocks[1].requires_grad_(False)
        return model

    @staticmethod
    def change(trial: Any, batch_idx: int) -> None:
        if batch_idx == 3:
            trial.model.blocks[1].requires_grad_(True)
        if batch_idx == 5:
            trial.model.stem.requires_grad_(False)


class TeacherTrial(ChangingTrial):
    """Two models, of which the second is frozen as a whole until the fourth batch."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.second = context.wrap_model(Net().requires_grad_(False))
        self.second_optimizer = context.wrap_optimizer(torch.optim.SGD(self.second.parameters(), lr=0.1))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        if batch_idx == 3:
            self.second.requires_grad_(True)
        loss = functional.mse_loss(self.model(inputs) + self.second(inputs), targets)
        self.context.backward(loss)
        for optimizer in (self.optimizer, self.second_optimizer):
            self.context.step_optimizer(optimizer)
        return {"loss": loss}


class LateLayerTrial(ChangingTrial):
    """Adds a layer at the third batch, to the model and to the optimizer."""

    @staticmethod
    def change(trial: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            layer = nn.Linear(3, 3)
            trial.model.extra = layer
            trial.model.register_forward_hook(lambda _model, _inputs, output: layer(output))
            trial.optimizer.add_param_group({"params": list(layer.parameters())})


class OddRankTrial(FrozenHeadTrial):
    """Only the last rank thaws the head."""

    @staticmethod
    def change(trial: Any, batch_idx: int) -> None:
        if batch_idx == 1 and rank() == 1:
            trial.model.head.requires_grad_(True)


class OwnGradientTrial(ChangingTrial):
    """Makes its gradients without a backward pass."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        parameters = list(self.model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        self.context.step_optimizer(self.optimizer, lambda chosen: self.context.clip_grad_norm(chosen, 0.1))
        return {"loss": loss}


class LateInitTrial(ChangingTrial):
    """Draws its initial weights after it has wrapped the model."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        torch.manual_seed(9)
        self.model.apply(self._init)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)
            nn.init.uniform_(module.bias, -0.1, 0.1)


class OddSeedTrial(LateInitTrial):
    """With another seed on each rank."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        torch.manual_seed(9 + rank())
        self.model.apply(self._init)


class AssigningTrial(ChangingTrial):
    @staticmethod
    def change(trial: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            for parameter in trial.model.parameters():
                parameter.data = parameter.data * 0.5


class DroppingNet(Net):
    """Leaves out one block in a pass, the first or the second. choose: which one; None for none."""

    choose: Callable[[], int | None] = staticmethod(lambda: None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.choose() if self.training else None
        x = self.stem(x)
        for number, block in enumerate(self.blocks):
            if number != chosen:
                x = block(x)
        out: torch.Tensor = self.head(x) * self.mask
        return out


class DropTrial(ChangingTrial):
    """Each rank leaves out another block."""

    options: tuple[int | None, ...] = (0, 1)

    def make_model(self) -> nn.Module:
        model = DroppingNet()
        model.choose = lambda: self.options[rank() % 2]
        return model


class UnevenDropTrial(DropTrial):
    """Only the first rank leaves out a block."""

    options = (1, None)


class EvenDropTrial(DropTrial):
    options = (1, 1)


class DriftingTrial(ChangingTrial):
    """Adds to one weight on one rank what its number in the gang makes of it, unnoticed by any exchange."""

    amount = 0.05

    @staticmethod
    def change(trial: Any, batch_idx: int) -> None:
        # zero1 sends what an optimizer has stepped to all ranks, which would hide it between two checks.
        trial.model.blocks[1].widen.requires_grad_(False)
        with torch.no_grad():
            trial.model.blocks[1].widen.weight[3, 2] += trial.amount * rank()


class RoundingTrial(DriftingTrial):
    amount = 1e-7


def run(kind: type[pytorch.PyTorchTrial], directory: Path, batches: int = 8, **config: Any) -> tuple[str, list[State]]:
    """Trains in that folder. Returns what was refused, empty where nothing was, and this rank's whole models."""
    os.chdir(directory)
    values = {"global_batch_size": 8, "optimizer": "sgd"}
    config = {"scheduling_unit": 1, "checkpoint_policy": "none", **config}
    try:
        with pytorch.init(hparams=values, exp_conf=config) as context:
            trial = kind(context)
            pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(batches))
            return "", [context.get_full_model_state(model) for model in context.models]
    except GanglineError as error:
        return f"{error.code}: {error.message}", []


def run_many(
    kind: type[pytorch.PyTorchTrial], directory: Path, strategies: list[str], batches: int = 8
) -> list[tuple[str, list[State]]]:
    return [run(kind, directory, batches, parallelism=strategy) for strategy in strategies]


def run_impatient(kind: type[pytorch.PyTorchTrial], directory: Path, strategy: str) -> tuple[str, list[State]]:
    """A rank waits for a change of the others for a second only."""
    from gangline.pytorch.parallel.whole import same_change

    same_change.WAIT_SECONDS = 1.0
    try:
        return run(kind, directory, parallelism=strategy)
    except RuntimeError as error:
        return str(error), []
