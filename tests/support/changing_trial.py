"""A trial with SGD whose model a test changes or uses in its own way: trained on every rank of a gang, and in one
process for the reference.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from gangline import pytorch
from gangline.errors import GanglineError
from tests.support.gang import run_gang
from tests.support.points_trial import PointsTrial

State = dict[str, torch.Tensor]
Kind = type[pytorch.PyTorchTrial]


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


def penalised_batch(trial: Any, batch: Any) -> dict[str, Any]:
    """Adds the squared gradient of the outputs by the inputs to the loss."""
    inputs, targets = batch
    inputs = inputs.clone().requires_grad_(True)
    outputs = trial.model(inputs)
    (slope,) = torch.autograd.grad(outputs.square().sum(), inputs, create_graph=True)
    loss = functional.mse_loss(outputs, targets) + 0.1 * slope.square().sum(1).mean()
    trial.context.backward(loss)
    trial.context.step_optimizer(trial.optimizer)
    return {"loss": loss}


def run(kind: Kind, directory: Path, batches: int = 8, **config: Any) -> tuple[str, list[State]]:
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


def run_many(kind: Kind, directory: Path, strategies: list[str], batches: int = 8) -> list[tuple[str, list[State]]]:
    return [run(kind, directory, batches, parallelism=strategy) for strategy in strategies]


def check_same(kind: Kind, directory: Path, strategies: list[str], size: int = 2) -> None:
    """Asserts that each strategy trains the models of all ranks to those of one process."""
    (alone,) = run_many(kind, directory, ["ddp"])
    assert alone[0] == ""
    by_rank = run_gang(size, directory / "gang", run_many, kind, directory, strategies)
    for strategy, *results in zip(strategies, *by_rank, strict=True):
        assert [refusal for refusal, _ in results] == [""] * size, strategy
        for _, models in results:
            for model, expected in zip(models, alone[1], strict=True):
                for name, value in expected.items():
                    assert torch.allclose(model[name].double(), value.double(), atol=1e-5), (strategy, name)


def refusals_of(kind: Kind, directory: Path, strategies: list[str], size: int = 2) -> dict[str, list[str]]:
    """Returns by strategy what each rank says."""
    results = run_gang(size, directory / "gang", run_many, kind, directory, strategies)
    return {strategy: [rank[place][0] for rank in results] for place, strategy in enumerate(strategies)}


def check_refused(kind: Kind, directory: Path, strategies: list[str], size: int, text: str) -> None:
    """text: with STRATEGY for its name."""
    expected = {name: [text.replace("STRATEGY", name)] * size for name in strategies}
    assert refusals_of(kind, directory, strategies, size) == expected
