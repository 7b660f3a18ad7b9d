"""A trial for models, optimizers and training code out of the ordinary: trained on every rank of a gang, and in one
process for the reference.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gangline import pytorch
from gangline.errors import GanglineError
from tests.support.gang import run_gang
from tests.support.points_trial import PointsTrial

State = dict[str, torch.Tensor]


class UnusualTrial(PointsTrial):
    """copies: models of the trial's own, whose states belong to the outcome too."""

    validation_period: pytorch.Batch | None = None

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        torch.manual_seed(4)
        self.context = context
        self.model = context.wrap_model(self.make_model())
        self.optimizers = [context.wrap_optimizer(optimizer) for optimizer in self.make_optimizers(self.model)]
        self.count = context.wrap_reducer(sum, name="records", for_training=False)
        self.copies: list[nn.Module] = []
        self.prepare()

    def prepare(self) -> None:
        """At the end of __init__."""

    def make_optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(model.parameters(), lr=0.1)]

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {}

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.run_model(inputs).to(targets.dtype), targets)
        self.context.backward(loss)
        for optimizer in self.optimizers:
            self.context.step_optimizer(optimizer, lambda parameters: self.context.clip_grad_norm(parameters, 0.5))
        self.after_step()
        return {"loss": loss}

    def run_model(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.model(inputs)
        return outputs

    def after_step(self) -> None: ...

    def outcome(self) -> str:
        """In the place of a refusal."""
        return ""


def run(
    kind: type[UnusualTrial],
    directory: Path,
    batches: int = 5,
    latest: str | None = None,
    policy: str = "none",
    **config: Any,
) -> tuple[str, list[State]]:
    """Trains in that folder. Returns what was refused, empty where nothing was, and this rank's whole models."""
    os.chdir(directory)
    config = {"scheduling_unit": 1, "checkpoint_policy": policy, **config}
    try:
        with pytorch.init(hparams={"global_batch_size": 8}, exp_conf=config) as context:
            trial = kind(context)
            pytorch.Trainer(trial, context).fit(
                max_length=pytorch.Batch(batches), validation_period=kind.validation_period, latest_checkpoint=latest
            )
            states = [context.get_full_model_state(model) for model in (*context.models, *trial.copies)]
            return trial.outcome(), states
    except GanglineError as error:
        return f"{error.code}: {error.message}", []


def run_many(
    kind: type[UnusualTrial], directory: Path, strategies: list[Any], batches: int = 5
) -> list[tuple[str, list[State]]]:
    return [run(kind, directory, batches, parallelism=strategy) for strategy in strategies]


def check_same(
    kind: type[UnusualTrial],
    directory: Path,
    strategies: list[Any],
    *,
    size: int = 2,
    tolerance: float = 1e-5,
    reference: type[UnusualTrial] | None = None,
) -> None:
    """Asserts that each strategy trains the models of all ranks to those of one process. reference: what that trains;
    None for the same."""
    directory.mkdir(exist_ok=True)
    ((refusal, alone),) = run_many(reference or kind, directory, ["none"])
    assert not refusal
    by_rank = run_gang(size, directory / "gang", run_many, kind, directory, strategies)
    for strategy, *results in zip(strategies, *by_rank, strict=True):
        assert [refusal for refusal, _ in results] == [""] * size, strategy
        for _, models in results:
            assert difference(models, alone) <= tolerance, strategy


def difference(models: list[State], alone: list[State]) -> float:
    """Returns the largest one of any number."""
    assert [model.keys() for model in models] == [model.keys() for model in alone]
    pairs = [
        (model[name], value)
        for model, expected in zip(models, alone, strict=True)
        for name, value in expected.items()
        if value.numel()
    ]
    return max(float((first.double() - second.double()).abs().max()) for first, second in pairs)


def check_refused(
    kind: type[UnusualTrial], directory: Path, strategies: list[str], text: str, *, size: int = 2
) -> None:
    """text: with {strategy} for its name."""
    directory.mkdir(exist_ok=True)
    for by_strategy in run_gang(size, directory / "gang", run_many, kind, directory, strategies):
        for strategy, (refusal, _) in zip(strategies, by_strategy, strict=True):
            assert refusal == text.format(strategy=strategy)
