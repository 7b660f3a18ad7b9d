"""A small trial that many tests train, and its model: on every rank of a gang, and in one process for the reference."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from gangline import pytorch


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.narrow(functional.gelu(self.widen(self.norm(x))))
        return out


class Net(nn.Module):
    """Blocks in a list, a head with fewer rows than a gang of four has ranks, and a mask among its buffers."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Linear(6, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 3)
        self.register_buffer("mask", torch.tensor([True, True, True]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x) * self.mask
        return out


def make_optimizer(model: nn.Module, kind: str) -> torch.optim.Optimizer:
    """Two groups, as trials that spare norms and biases from decay have."""
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9) if kind == "sgd" else torch.optim.AdamW(groups, lr=0.01)


class PointsTrial(pytorch.PyTorchTrial):
    """hyperparameters: optimizer, wide. losses: of every batch, over all ranks."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        hparams = context.get_hparams()
        self.model = context.wrap_model(self.make_model())
        self.optimizer = context.wrap_optimizer(make_optimizer(self.model, hparams.get("optimizer", "adamw")))
        scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 4, 0.8)
        context.wrap_lr_scheduler(scheduler, pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH)
        self.count = context.wrap_reducer(sum, name="records", for_training=False)
        self.recorder = Recorder()

    def make_model(self) -> nn.Module:
        return Net(self.context.get_hparams().get("width", 8))

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"recorder": self.recorder}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_points(96), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_points(37), batch_size=8)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer, lambda parameters: self.context.clip_grad_norm(parameters, 1.0))
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        self.count.update(len(inputs))  # type: ignore[attr-defined]  # a FunctionReducer, as the call above makes it
        return {"error": functional.mse_loss(self.model(inputs), targets)}


class WholePointsTrial(PointsTrial):
    """Evaluates all at once, on the chief."""

    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        parts = [(len(inputs), functional.mse_loss(self.model(inputs), targets)) for inputs, targets in data_loader]
        return {"error": sum(count * float(error) for count, error in parts) / 37}


class Recorder(pytorch.PyTorchCallback):
    """losses and validations by batch, ids of checkpoints, and a state that a checkpoint keeps."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.validations: list[dict[str, float]] = []
        self.checkpoints: list[str] = []
        self.seen = 0

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        self.losses.append(float(avg_metrics["loss"]))
        self.seen += 1

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self.validations.append(dict(metrics))

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.checkpoints.append(uuid)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen = state_dict["seen"]


def fit(
    parallelism: Any,
    batches: int,
    latest: str | None = None,
    kind: type[PointsTrial] = PointsTrial,
    hparams: dict[str, Any] | None = None,
    **more: Any,
) -> Recorder:
    """Trains in the current folder, whose checkpoints it reads and adds to. more: of Trainer.fit."""
    configuration = {"parallelism": parallelism, "scheduling_unit": 1, "checkpoint_policy": "none"}
    values = {"global_batch_size": 8, **(hparams or {})}
    with pytorch.init(hparams=values, exp_conf=configuration) as context:
        trial = kind(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(batches), latest_checkpoint=latest, **more)
    return trial.recorder


def _points(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(count, 6, generator=generator)
    return TensorDataset(inputs, torch.tanh(inputs[:, :3] + inputs[:, 3:]))
