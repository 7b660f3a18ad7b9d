"""A trial small enough to train in a test's own process, and what trains it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gangline import pytorch

DATA = TensorDataset(torch.linspace(-1, 1, 12).reshape(-1, 1))


class SmallTrial(pytorch.PyTorchTrial):
    """Four batches an epoch. Tests change a piece of it."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=1.0))
        self.seen: list[tuple[int, int, bool, bool]] = []

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(DATA, batch_size=3)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(DATA, batch_size=5)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.seen.append((epoch_idx, batch_idx, self.context.is_epoch_start(), self.context.is_epoch_end()))
        loss = (self.model(batch[0]) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:  # type: ignore[override]  # without the index, as allowed
        assert not self.model.training
        return {"error": (self.model(batch[0]) ** 2).mean()}


T = TypeVar("T", bound=pytorch.PyTorchTrial)


def fit(make: Callable[[pytorch.PyTorchTrialContext], T], **arguments: Any) -> T:
    """Trains it and returns it. init: arguments of pytorch.init, the others are those of Trainer.fit."""
    with pytorch.init(**arguments.pop("init", {})) as context:
        trial = make(context)
        pytorch.Trainer(trial, context).fit(**arguments)
    return trial
