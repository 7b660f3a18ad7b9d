"""Work of a gang's ranks in tests of what several ranks keep as copies: trials that change the copies apart, and trials
that fill buffers from the records of one rank."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gangline import pytorch
from gangline.pytorch.training import drift
from tests.support.changing_work import ChangingTrial, rank, run
from tests.support.strategy_work import Block, Net

# Batches of an epoch of PointsTrial, with 8 records in each.
EPOCH = 12


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


def save_apart(directory: Path) -> dict[str, torch.Tensor]:
    """Saves a trial whose ranks have other buffers each. Returns the model of this rank."""
    parallelism = {"strategy": "ddp", "broadcast_buffers": False}
    refusal, (model,) = run(QueueTrial, directory, 4, parallelism=parallelism, checkpoint_policy="all")
    assert not refusal
    return model
