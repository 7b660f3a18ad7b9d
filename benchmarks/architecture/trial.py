"""Trains one architecture under a strategy, on each rank of a gang, and in one process of plain PyTorch.

The process gets the records of all ranks, in the same parts: a rank's, or a microbatch's. So normalisation over a batch
sees the same records. Running statistics are those of the first replica, in both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import Dataset

from benchmarks.architecture.catalogue import find
from benchmarks.architecture.library import add_folder
from benchmarks.architecture.model import Architecture, Records, make_model, make_records
from benchmarks.random_program.block import copy_with_parameters
from benchmarks.random_program.outcome import Outcome
from gangline import pytorch

GLOBAL_BATCH, BATCHES = 8, 3
VALIDATION_BATCH, VALIDATION_BATCHES = 4, 4


@dataclass(frozen=True, slots=True)
class Order:
    """The order to train one architecture."""

    name: str  # name of the architecture
    ranks: int  # ranks of the gang
    parallelism: dict[str, Any] = field(default_factory=dict)  # section of this name
    folder: str = ""  # folder with the libraries, or empty

    @property
    def microbatches(self) -> int:
        return int(self.parallelism.get("microbatches", 1))

    @property
    def replicas(self) -> int:
        is_staged = self.parallelism["strategy"] == "pipeline"
        return self.ranks // int(self.parallelism.get("stages", self.ranks)) if is_staged else self.ranks


class _Rows(Dataset[Any]):
    def __init__(self, architecture: Architecture, number: int) -> None:
        self._records = make_records(architecture, GLOBAL_BATCH * BATCHES)
        self._number = number

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, place: int) -> Records:
        return {name: tensor[place] for name, tensor in self._records.items()}


class _Trial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext, architecture: Architecture) -> None:
        self.context = context
        self.architecture = architecture
        self.model = context.wrap_model(make_model(architecture))
        self.optimizer = context.wrap_optimizer(_optimizer(self.model))
        self.recorder = _Recorder()

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"recorder": self.recorder}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        rows = _Rows(self.architecture, GLOBAL_BATCH * BATCHES)
        return pytorch.DataLoader(rows, batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        rows = _Rows(self.architecture, VALIDATION_BATCH * VALIDATION_BATCHES)
        return pytorch.DataLoader(rows, batch_size=VALIDATION_BATCH)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        loss = self.architecture.loss(self.model, batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": self.architecture.loss(self.model, batch) if self.architecture.has_validation else 0.0}


class _Recorder(pytorch.PyTorchCallback):
    def __init__(self) -> None:
        self.outcome = Outcome()

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        self.outcome.losses.append(float(avg_metrics["loss"]))

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self.outcome.validations.append(float(metrics["error"]))


def train_in_rank(order: Order) -> Outcome:
    if order.folder:
        add_folder(order.folder)
    config = {"parallelism": order.parallelism, "scheduling_unit": 1}
    with pytorch.init(hparams={"global_batch_size": GLOBAL_BATCH}, exp_conf=config) as context:
        trial = _Trial(context, find(order.name))
        pytorch.Trainer(trial, context).fit(
            max_length=pytorch.Batch(BATCHES),
            reporting_period=pytorch.Batch(1),
            validation_period=pytorch.Batch(BATCHES),
            checkpoint_policy="none",
        )
        outcome = trial.recorder.outcome
        outcome.state = context.get_full_model_state(trial.model)
        return outcome


def train_alone(name: str, replicas: int, microbatches: int) -> Outcome:
    torch.manual_seed(0)
    architecture = find(name)
    model = make_model(architecture)
    copies = [model, *(copy_with_parameters(model) for _ in range(1, replicas))]
    optimizer = _optimizer(model)
    records = make_records(architecture, GLOBAL_BATCH * BATCHES)
    outcome = Outcome()
    for number in range(BATCHES):
        total = 0.0
        for replica, of_replica in enumerate(_parts(_parts(records, BATCHES)[number], replicas)):
            for part in _parts(of_replica, microbatches):
                loss = architecture.loss(copies[replica], part) / (replicas * microbatches)
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                total += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        outcome.losses.append(total)
    outcome.validations.append(_validate(architecture, model, records))
    outcome.state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return outcome


@torch.no_grad()
def _validate(architecture: Architecture, model: torch.nn.Module, records: Records) -> float:
    if not architecture.has_validation:
        return 0.0
    model.eval()
    batches = _parts(records, GLOBAL_BATCH * BATCHES // VALIDATION_BATCH)[:VALIDATION_BATCHES]
    return sum(float(architecture.loss(model, batch)) for batch in batches) / len(batches)


def _parts(records: Records, number: int) -> list[Records]:
    """Returns so many equal parts."""
    chunks = {name: tensor.chunk(number) for name, tensor in records.items()}
    return [{name: parts[place] for name, parts in chunks.items()} for place in range(number)]


def _optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.SGD(trained, lr=0.05, momentum=0.9)
