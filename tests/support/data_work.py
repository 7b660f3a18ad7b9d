"""Work of a gang's ranks in tests of training data: train on records that do not fill the last step, count the bytes
that they send, and clip gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils.data import TensorDataset

from gangline import pytorch
from gangline.config.optimization import Optimizations
from gangline.pytorch.parallel import choose_strategy
from tests.support.folder_work import in_folder
from tests.support.strategy_work import Net, PointsTrial, WholePointsTrial, make_optimizer

_GLOBAL_BATCH = 16


@dataclass(frozen=True, slots=True)
class Uneven:
    """One training."""

    strategy: str
    count: int  # number of records
    aggregation: int = 1  # batches of an optimizer step
    batches: int = 6
    drop_last: bool = False


@dataclass(frozen=True, slots=True)
class Learned:
    """The result of a training."""

    reports: list[dict[str, float]]  # metrics of each batch
    model: dict[str, torch.Tensor]
    epochs: list[int]  # epochs that were completed after each batch


class _Reports(pytorch.PyTorchCallback):
    def __init__(self) -> None:
        self.found: list[dict[str, float]] = []

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        self.found.append({name: float(value) for name, value in avg_metrics.items()})


class _Records(pytorch.MetricReducer):
    """A trial's own class, which counts records."""

    def __init__(self) -> None:
        self.count = 0

    def reset(self) -> None:
        self.count = 0

    def per_slot_reduce(self) -> int:
        return self.count

    def cross_slot_reduce(self, per_slot_metrics: list[int]) -> int:
        return sum(per_slot_metrics)


class UnevenTrial(PointsTrial):
    """Trains doubles, so that rounding hides nothing. hyperparameters: count, drop_last."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.reports = _Reports()
        self.epochs: list[int] = []
        self.own = context.wrap_reducer(_Records(), name="own", for_validation=False)
        self.values = context.wrap_reducer(sum, name="values", for_validation=False)

    def make_model(self) -> torch.nn.Module:
        torch.manual_seed(0)
        return Net().double()

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"reports": self.reports}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        hparams = self.context.get_hparams()
        inputs = torch.randn(hparams["count"], 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        records = TensorDataset(inputs, torch.tanh(inputs[:, :3] + inputs[:, 3:]))
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(records, batch_size=size, shuffle=True, drop_last=hparams["drop_last"])

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.epochs.append(epoch_idx)
        inputs, targets = batch
        self.own.count += len(inputs)  # type: ignore[attr-defined]  # its own class
        self.values.update(len(inputs))  # type: ignore[attr-defined]  # a FunctionReducer, as the call above makes it
        loss = functional.mse_loss(self.model(inputs), targets)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer, lambda parameters: self.context.clip_grad_norm(parameters, 0.5))
        return {"loss": loss, "double": 2 * float(loss.detach())}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": 0.0}


@in_folder
def train_uneven(directory: Path, runs: Sequence[Uneven]) -> list[Learned]:
    """One after another, in this folder."""
    return [_train(run) for run in runs]


def _train(run: Uneven) -> Learned:
    configuration = {
        "parallelism": run.strategy,
        "scheduling_unit": 1,
        "optimizations": {"aggregation_frequency": run.aggregation},
    }
    hparams = {
        "global_batch_size": _GLOBAL_BATCH,
        "optimizer": "sgd",
        "count": run.count,
        "drop_last": run.drop_last,
    }
    with pytorch.init(hparams=hparams, exp_conf=configuration, enable_tensorboard_logging=False) as context:
        trial = UnevenTrial(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(run.batches), checkpoint_policy="none")
        return Learned(trial.reports.found, context.get_full_model_state(trial.model), trial.epochs)


class _Plain(WholePointsTrial):
    """Without anything that the ranks exchange besides gradients."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}


@in_folder
def count_reductions(directory: Path, strategy: str, aggregation: int, batches: int) -> tuple[int, int]:
    """How many reductions of gradients a training makes on this rank, and how many bytes go into them."""
    configuration = {"parallelism": strategy, "optimizations": {"aggregation_frequency": aggregation}}
    with (
        pytorch.init(hparams={"global_batch_size": 8}, exp_conf=configuration) as context,
        _counted_reductions() as sizes,
    ):
        trial = _Plain(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(batches), checkpoint_policy="none")
    return len(sizes), sum(sizes)


@contextmanager
def _counted_reductions() -> Iterator[list[int]]:
    """The bytes of each reduce-scatter meanwhile, as fully_shard calls it."""
    # Older releases of torch have the second one only.
    name = next(name for name in ("reduce_scatter_single", "reduce_scatter_tensor") if hasattr(dist, name))
    original: Any = getattr(dist, name)
    sizes: list[int] = []

    def counted(output: torch.Tensor, input: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        sizes.append(input.numel() * input.element_size())
        return original(output, input, *arguments, **options)

    setattr(dist, name, counted)
    try:
        yield sizes
    finally:
        setattr(dist, name, original)


def clip(strategy_name: str, bounds: Sequence[float]) -> list[tuple[float, bool, float]]:
    """For each bound: the norm that clipping returns, whether it left the gradients as they were bit for bit, and the
    norm that they have afterwards."""
    size = dist.get_world_size() if dist.is_initialized() else 1
    strategy = choose_strategy(strategy_name, size, torch.device("cpu"), Optimizations())
    torch.manual_seed(0)
    model = strategy.prepare_model(Net())
    optimizer = strategy.prepare_optimizer(make_optimizer(model, "sgd"))
    results = []
    for bound in bounds:
        functional.mse_loss(model(torch.ones(4, 6)), torch.zeros(4, 3)).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        before = [_local(parameter.grad).clone() for parameter in model.parameters()]
        norm = float(strategy.clip_gradients(model.parameters(), bound))
        after = [_local(parameter.grad) for parameter in model.parameters()]
        is_same = all(torch.equal(old, other) for old, other in zip(before, after, strict=True))
        results.append((norm, is_same, float(strategy.clip_gradients(model.parameters(), float("inf")))))
        optimizer.zero_grad()
    return results


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
