"""Trains one architecture under a strategy, and in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from benchmarks.architecture.catalogue import Architecture, list_architectures
from benchmarks.random_program.outcome import Outcome
from gangline import pytorch

GLOBAL_BATCH, BATCHES = 8, 2


@dataclass(frozen=True, slots=True)
class Order:
    """name: of the architecture. parallelism: the section. ranks: of the gang."""

    name: str
    ranks: int
    parallelism: dict[str, Any] = field(default_factory=dict)

    @property
    def pieces(self) -> int:
        """Equal parts of a batch that go through the model by themselves, as normalisation over a batch sees them."""
        if self.parallelism["strategy"] != "pipeline":
            return self.ranks
        replicas = self.ranks // int(self.parallelism.get("stages", self.ranks))
        return replicas * int(self.parallelism["microbatches"])


class _Records(Dataset[Any]):
    def __init__(self, architecture: Architecture) -> None:
        self._batch = architecture.batch(GLOBAL_BATCH * BATCHES)

    def __len__(self) -> int:
        return GLOBAL_BATCH * BATCHES

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {name: tensor[place] for name, tensor in self._batch.items()}


class _Trial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext, architecture: Architecture) -> None:
        self.context = context
        self.architecture = architecture
        self.model = context.wrap_model(_make(architecture))
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(trained, lr=0.01))
        self.recorder = _Recorder()

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"recorder": self.recorder}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_Records(self.architecture), batch_size=self.context.get_per_slot_batch_size())

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        loss = _loss(self.model, batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": _loss(self.model, batch)}


class _Recorder(pytorch.PyTorchCallback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        self.losses.append(float(avg_metrics["loss"]))


def train_in_rank(order: Order) -> Outcome:
    config = {"parallelism": order.parallelism, "scheduling_unit": 1}
    with pytorch.init(hparams={"global_batch_size": GLOBAL_BATCH}, exp_conf=config) as context:
        trial = _Trial(context, _find(order.name))
        pytorch.Trainer(trial, context).fit(
            max_length=pytorch.Batch(BATCHES), reporting_period=pytorch.Batch(1), checkpoint_policy="none"
        )
        return Outcome(trial.recorder.losses, state=_parameters(trial.model, context.get_full_model_state(trial.model)))


def train_alone(order: Order) -> Outcome:
    """Trains with the batches of all ranks, cut as under the strategy."""
    torch.manual_seed(0)
    architecture = _find(order.name)
    model = _make(architecture)
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.01)
    batch = architecture.batch(GLOBAL_BATCH * BATCHES)
    outcome = Outcome()
    model.train()
    for number in range(BATCHES):
        rows = {name: tensor.chunk(BATCHES)[number].chunk(order.pieces) for name, tensor in batch.items()}
        total = 0.0
        for piece in range(order.pieces):
            loss = _loss(model, {name: parts[piece] for name, parts in rows.items()}) / order.pieces
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            total += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        outcome.losses.append(total)
    outcome.state = _parameters(model, model.state_dict())
    return outcome


def _find(name: str) -> Architecture:
    return next(architecture for architecture in list_architectures() if architecture.name == name)


def _make(architecture: Architecture) -> nn.Module:
    return architecture.make().double()


def _loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Compares each record's output with one row of numbers, so that the loss is a mean over records."""
    only = next(iter(batch.values())) if len(batch) == 1 and "x" in batch else None
    output = _first_tensor(model(only) if only is not None else model(**batch))
    wanted = torch.cos(torch.arange(output[0].numel(), dtype=output.dtype)).reshape(output[0].shape)
    return functional.mse_loss(output, wanted.expand_as(output))


def _first_tensor(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output
    values = output.values() if isinstance(output, dict) else output
    found = (value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point())
    return next(found)


def _parameters(model: nn.Module, state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Running statistics depend on the number of ranks, parameters do not."""
    buffers = {name for name, _ in model.named_buffers()}
    return {name: value.detach().clone() for name, value in state.items() if name not in buffers}
