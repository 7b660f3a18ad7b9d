"""Trials that use their models in ways of their own: what ranks of a gang do in tests of what works in which strategy.
`run` and `run_many` of tests.support.changing_work train them; in one process each is the reference."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from gangline import pytorch
from gangline.config.optimization import Optimizations
from gangline.pytorch.parallel import choose_strategy
from gangline.pytorch.parallel.divided.announcement import Announcements
from gangline.pytorch.parallel.divided.sharded import ShardedStrategy
from tests.support.changing_work import ChangingTrial, State, rank, run
from tests.support.points_trial import Net


class NormedBlock(nn.Module):
    """Over one dimension and over three, with and without learnt factors and tracked statistics."""

    def __init__(self, affine: bool, momentum: float | None, tracks: bool = True) -> None:
        super().__init__()
        self.flat = nn.BatchNorm1d(8, affine=affine, momentum=momentum, track_running_stats=tracks)
        self.line = nn.BatchNorm1d(2)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.flat(self.linear(x))
        out: torch.Tensor = torch.tanh(self.line(x.view(-1, 2, 4)).reshape(-1, 8))
        return out


class NormedNet(nn.Module):
    """A layer for the inputs themselves, which have no gradient, and layers for what a layer has made."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm1d(6)
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.ModuleList([NormedBlock(True, 0.1), NormedBlock(False, None), NormedBlock(True, 0.3, False)])
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(self.first(x))
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class SyncNormTrial(ChangingTrial):
    def make_model(self) -> nn.Module:
        model: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(NormedNet())  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return model


class PenalisedNormTrial(SyncNormTrial):
    """Differentiates through the statistics twice."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        return _penalised_batch(self, batch)


class LateSyncNormTrial(ChangingTrial):
    """Converts a model that is wrapped already."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        nn.SyncBatchNorm.convert_sync_batchnorm(self.model)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def make_model(self) -> nn.Module:
        return NormedNet()


class OwnSyncNorm(nn.SyncBatchNorm):
    pass


class OwnSyncNormTrial(ChangingTrial):
    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 3), OwnSyncNorm(3))


class LazyTrial(ChangingTrial):
    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Tanh(), nn.LazyLinear(3))


class LoneLazyTrial(ChangingTrial):
    """Whose optimizer does not look at shapes."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(3)))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": functional.mse_loss(self.model(batch[0]), batch[1])}


class RunLazyTrial(LazyTrial):
    """Follows the advice."""

    def make_model(self) -> nn.Module:
        model = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(3))
        with torch.no_grad():
            model(torch.zeros(2, 6))
        return model


class LossTrial(ChangingTrial):
    """Passes something else than one number to context.backward."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        self.context.backward(self.spoil(functional.mse_loss(self.model(inputs), targets, reduction="none")))
        return {}

    @staticmethod
    def spoil(losses: torch.Tensor) -> Any:
        return losses


class NumberLossTrial(LossTrial):
    @staticmethod
    def spoil(losses: torch.Tensor) -> Any:
        return losses.mean().item()


class DetachedLossTrial(LossTrial):
    @staticmethod
    def spoil(losses: torch.Tensor) -> Any:
        return losses.mean().detach()


class LoadingTrial(ChangingTrial):
    """Loads weights into the wrapped model, all at first and those of one block later, after a pass without gradients
    that leaves whole parameters where they were gathered."""

    assign = False

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        if self.loads():
            self.model.load_state_dict(_other_state(), assign=self.assign)

    @staticmethod
    def loads() -> bool:
        return True

    @staticmethod
    def change(trial: Any, batch_idx: int) -> None:
        if batch_idx == 3 and trial.loads():
            with torch.no_grad():
                trial.model(torch.zeros(2, 6))
            state = {name: 0.5 * value for name, value in _other_state().items() if name.startswith("blocks.1.")}
            trial.model.blocks[1].load_state_dict({name[9:]: value for name, value in state.items()})


class ChiefLoadingTrial(LoadingTrial):
    @staticmethod
    def loads() -> bool:
        return rank() == 0


class AssignedLoadingTrial(LoadingTrial):
    assign = True


class LateAssignedLoadingTrial(ChangingTrial):
    """After the optimizer was made."""

    @staticmethod
    def change(trial: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            trial.model.load_state_dict(_other_state(), assign=True)


def _other_state() -> dict[str, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(21)
        return Net().state_dict()


class PenaltyTrial(ChangingTrial):
    """Adds the squared gradient of the outputs by the inputs to the loss."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        return _penalised_batch(self, batch)


def _penalised_batch(trial: Any, batch: Any) -> dict[str, Any]:
    inputs, targets = batch
    inputs = inputs.clone().requires_grad_(True)
    outputs = trial.model(inputs)
    (slope,) = torch.autograd.grad(outputs.square().sum(), inputs, create_graph=True)
    loss = functional.mse_loss(outputs, targets) + 0.1 * slope.square().sum(1).mean()
    trial.context.backward(loss)
    trial.context.step_optimizer(trial.optimizer)
    return {"loss": loss}


class SecondOrderTrial(ChangingTrial):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        self.context.backward(functional.mse_loss(self.model(inputs), targets), create_graph=True)
        return {}


class PartTrial(ChangingTrial):
    """Calls the parts of its model one by one, and never the model."""

    model: Any

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        return self.step(functional.mse_loss(self.model.head(self.encode(inputs)), targets))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        x = self.model.stem(x)
        for block in self.model.blocks:
            x = block(x)
        return x

    def step(self, loss: torch.Tensor) -> dict[str, Any]:
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}


class LatePartTrial(PartTrial):
    """After a pass of the model that has no backward pass."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.model(batch[0])
        return super().train_batch(batch, epoch_idx, batch_idx)


class HeadTrial(PartTrial):
    """Trains the head alone, by itself, after such a pass."""

    def make_model(self) -> nn.Module:
        model = Net()
        model.stem.requires_grad_(False)
        model.blocks.requires_grad_(False)
        return model

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        self.model(inputs)
        features = torch.cat([inputs, inputs[:, :2]], 1)
        return self.step(functional.mse_loss(self.model.head(features), targets))


class WholeAndPartTrial(PartTrial):
    """Calls the model, and one of its blocks again."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        whole = functional.mse_loss(self.model(inputs), targets)
        return self.step(whole + self.model.blocks[0](torch.cat([inputs, inputs[:, :2]], 1)).square().mean())


class BlocksNet(nn.Sequential):
    """All of whose parameters are in blocks."""

    def __init__(self) -> None:
        super().__init__(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)))


class BlocksTrial(PartTrial):
    """Calls blocks alone; a validation calls the model."""

    def make_model(self) -> nn.Module:
        return BlocksNet()

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        x = inputs
        for block in self.model:
            x = block(x)
        return self.step(functional.mse_loss(x[:, :3], targets))

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self.count.update(1)  # type: ignore[attr-defined]  # a FunctionReducer
        return {"error": functional.mse_loss(self.model(batch[0])[:, :3], batch[1])}


class PartEvaluationTrial(ChangingTrial):
    model: Any

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": self.model.blocks[0].widen(self.model.stem(batch[0])).mean()}


class OwnBackwardTrial(ChangingTrial):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.context.step_optimizer(self.optimizer, lambda parameters: self.context.clip_grad_norm(parameters, 1.0))
        return {"loss": loss}


class OwnBackwardBetweenTrial(ChangingTrial):
    """A pass of its own in each batch without a step."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        if batch_idx % 2:
            self.context.backward(loss)
        else:
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}


class TwiceTrial(ChangingTrial):
    """Two backward passes through one graph."""

    keeps = True

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        outputs = self.model(inputs)
        loss = functional.mse_loss(outputs, targets)
        self.context.backward(loss, retain_graph=self.keeps)
        self.context.backward(outputs.abs().mean() if self.keeps else loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}


class PartlyTwiceTrial(ChangingTrial):
    """The second backward pass does not reach the head."""

    model: Any

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        stem = self.model.stem(inputs)
        loss = functional.mse_loss(self.model(inputs), targets)
        self.context.backward(loss)
        self.context.backward(stem.square().mean())
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.first = nn.Linear(8, 3)
        self.second = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tanh(self.stem(x))
        return self.first(x), self.second(x)


class TwoHeadsTrial(ChangingTrial):
    """Makes a backward pass for each head."""

    adds = False

    def make_model(self) -> nn.Module:
        return TwoHeads()

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        losses = [functional.mse_loss(output, targets) for output in self.model(inputs)]
        if self.adds:
            losses = [torch.stack(losses).sum()]
        for place, loss in enumerate(losses):
            self.context.backward(loss, retain_graph=place + 1 < len(losses))
        self.context.step_optimizer(self.optimizer)
        return {"loss": losses[0]}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self.count.update(1)  # type: ignore[attr-defined]  # a FunctionReducer
        return {"error": functional.mse_loss(self.model(batch[0])[0], batch[1])}


class AddedHeadsTrial(TwoHeadsTrial):
    adds = True


class FreedTwiceTrial(TwiceTrial):
    keeps = False


def run_kinds(
    kinds: list[type[pytorch.PyTorchTrial]], directory: Path, parallelism: Any
) -> list[tuple[str, list[State]]]:
    return [run(kind, directory, parallelism=parallelism) for kind in kinds]


def run_aggregated(
    kinds: list[type[pytorch.PyTorchTrial]], directory: Path, strategies: list[str]
) -> list[tuple[str, list[State]]]:
    """Each kind in each strategy, with a step for every two batches."""
    return [
        run(kind, directory, parallelism=strategy, optimizations={"aggregation_frequency": 2})
        for strategy in strategies
        for kind in kinds
    ]


def lonely_collective(seconds: float) -> list[float]:
    """On the chief, for each process group of hsdp: how long a collective has waited for ranks that never come."""
    timeout = timedelta(seconds=seconds)
    strategy = choose_strategy("hsdp", dist.get_world_size(), torch.device("cpu"), Optimizations(), timeout=timeout)
    assert isinstance(strategy, ShardedStrategy)
    announcements = Announcements(torch.device("cpu"), timeout)
    groups = [strategy.mesh.get_group("replicate"), strategy.mesh.get_group("shard"), announcements._group]
    dist.barrier()
    waits = []
    for group in groups if rank() == 0 else ():
        began = time.perf_counter()
        try:
            dist.all_reduce(torch.zeros(1), group=group)
        except RuntimeError:
            waits.append(time.perf_counter() - began)
    # Of the default group, which has torch's own timeout of half an hour.
    dist.barrier()
    return waits
