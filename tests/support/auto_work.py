"""Work of a gang's ranks in tests of `parallelism: auto`. The memory of a slot is set, because a test's model fits into
any machine; everything else is measured."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from gangline import pytorch
from gangline.config.strategy_choice import StrategyChoice
from gangline.errors import GanglineError
from gangline.pytorch.parallel.recomputed import Recomputed
from gangline.pytorch.plan import place
from gangline.pytorch.plan.step_time import SPARE_BYTES, SPARE_RATIO
from tests.support.folder_work import in_folder
from tests.support.strategy_work import Recorder

_WIDTH = 512


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(inputs))


class Stack(nn.Module):
    """About a million parameters in four blocks. A pipeline can cut it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        return inputs


class Whole(nn.Module):
    """The same without a list of blocks, so that no pipeline can cut it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.fourth = Layer(), Layer(), Layer(), Layer()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        passed: torch.Tensor = functional.dropout(self.second(self.first(inputs)), 0.1, self.training)
        return self.fourth(self.third(passed))  # type: ignore[no-any-return]  # torch's modules return Any


class Switch(nn.Module):
    is_on = False


class Shortened(Whole):
    """Runs without its last two layers while its switch is on."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = Switch()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(inputs)) if self.cut.is_on else super().forward(inputs)


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(64, _WIDTH), nn.Linear(_WIDTH, 64)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.outer(functional.dropout(torch.tanh(self.inner(inputs)), 0.1, self.training))
        return found


class Long(Stack):
    """Few parameters and many activations, most of them inside of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Wide() for _ in range(4))


class StackTrial(pytorch.PyTorchTrial):
    """Draws weights, data and drop-outs from the process's generators, which `auto` must not move."""

    make: type[nn.Module] = Stack
    shape: tuple[int, ...] = (_WIDTH,)

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(type(self).make())
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), lr=1e-3))
        self.scale = random.uniform(0.5, 1.5)
        self.recorder = Recorder()

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"recorder": self.recorder}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        inputs = torch.randn(32, *self.shape, generator=torch.Generator().manual_seed(3))
        data = TensorDataset(inputs, torch.tanh(inputs * self.scale))
        return pytorch.DataLoader(data, batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": 0.0}


class WholeTrial(StackTrial):
    make = Whole


class LateTrial(StackTrial):
    """Leaves two layers out from the third batch on, which ddp and zero1 refuse."""

    make = Shortened

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.model.get_submodule("cut").is_on = batch_idx >= 2  # type: ignore[assignment]  # no submodule
        return super().train_batch(batch, epoch_idx, batch_idx)


class LongTrial(StackTrial):
    make = Long
    shape = (128, 64)


class BrokenTrial(StackTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        raise ValueError("no data in the folder\nand more")


class Lazy(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.LazyLinear(64))


class LazyTrial(StackTrial):
    make = Lazy


class LeavingTrial(StackTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        raise SystemExit("the trial leaves")


@dataclass(frozen=True)
class Case:
    """A training by `auto` under a limit of memory."""

    kind: str  # kind of the trial
    # A slot may use one byte less than this candidate needs, as an earlier case of the same kind has measured. `least`
    # is below all of them, `plain` below all without recomputation; empty for ample memory.
    below: str = ""
    parallelism: Any = "auto"
    is_passed: bool = True
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The result of a case."""

    losses: list[float]
    by_hand: list[float]  # losses under the chosen strategy, named in the configuration
    record: StrategyChoice | None
    strategy: str  # its name as made, with `recomputed` if modules run again
    checkpoint: str | None
    error: str = ""


@in_folder
def choose_all(directory: Path, cases: list[Case]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    sizes: dict[str, dict[str, int]] = {}
    for case in cases:
        outcomes.append(_choose(case, sizes.get(case.kind, {})))
        if (record := outcomes[-1].record) is not None and case.kind not in sizes:
            totals = {row.name: row.bytes["total"] for row in record.rows if row.bytes}
            plain = [totals[row.name] for row in record.rows if row.bytes and row.activation_checkpointing == "none"]
            sizes[case.kind] = {**totals, "least": min(totals.values()), "plain": min(plain)}
    return outcomes


def _choose(case: Case, sizes: dict[str, int]) -> Outcome:
    usable = sizes[case.below] - 1 if case.below else 1e12
    memory = int((usable + SPARE_BYTES) / (1 - SPARE_RATIO))
    with mock.patch.object(place, "memory_limits", return_value={f"process {os.getpid()}": memory}):
        try:
            losses, record, strategy, checkpoint = _train(case, case.parallelism, saves=True)
        except GanglineError as error:
            return Outcome([], [], None, "", None, f"{error.code}: {error.message}")
    assert record is not None
    options: dict[str, Any] = {
        key: value for key, value in record.chosen.options.items() if key in ("stages", "replicas")
    }
    options["activation_checkpointing"] = record.chosen.activation_checkpointing
    by_hand = _train(case, {"strategy": record.chosen.strategy, **options}, saves=False)[0]
    return Outcome(losses, by_hand, record, strategy, checkpoint)


def _train(case: Case, parallelism: Any, *, saves: bool) -> tuple[list[float], StrategyChoice | None, str, str | None]:
    kind = globals()[case.kind]
    config = {"parallelism": parallelism, "scheduling_unit": 1, **case.config}
    passed = kind if case.is_passed else None
    with pytorch.init(hparams={"global_batch_size": 16}, exp_conf=config, trial_class=passed) as context:
        trial = kind(context)
        policy = "all" if saves else "none"
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(4), checkpoint_policy=policy)
        checkpoint = context.distributed.broadcast(
            trial.recorder.checkpoints[-1] if trial.recorder.checkpoints else None
        )
        forwards = [vars(module).get("forward") for module in trial.model.modules()]
        # A pipeline calls the forward of a unit through a partial function.
        inner = [own.args[-1] if isinstance(own, partial) else own for own in forwards]
        is_recomputed = any(isinstance(own, Recomputed) for own in inner)
        made = f"{context.strategy.name} recomputed" if is_recomputed else context.strategy.name
        return trial.recorder.losses, context.strategy_choice, made, checkpoint
