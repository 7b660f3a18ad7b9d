"""Small trainings for benchmarks/parity.py, run by torchrun on every rank.

Each trains a transformer of four blocks on synthetic tokens, through the trainer, in one strategy after another.
Arguments: a folder for checkpoints and results, and a JSON list of cases.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils.data import TensorDataset

from benchmarks.transformer import Transformer
from gangline import pytorch

VOCABULARY, LENGTH = 64, 16
GLOBAL_BATCH = 16


class LayeredTrial(pytorch.PyTorchTrial):
    """Trains the transformer. hyperparameters: optimizer (sgd or adamw), bits (32 or 64)."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        model = Transformer(words=VOCABULARY, length=LENGTH, width=32, heads=4, blocks=4)
        self.model = context.wrap_model(model.double() if context.get_hparam("bits") == 64 else model)
        parameters = self.model.parameters()
        is_sgd = context.get_hparam("optimizer") == "sgd"
        optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(parameters, lr=0.1, momentum=0.9) if is_sgd else torch.optim.AdamW(parameters, lr=0.001)
        )
        self.optimizer = context.wrap_optimizer(optimizer)
        self.recorder = Recorder()

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"recorder": self.recorder}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_text(64 * GLOBAL_BATCH), batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_text(2 * GLOBAL_BATCH), batch_size=self.context.get_per_slot_batch_size())

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        loss = self._loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer, lambda parameters: self.context.clip_grad_norm(parameters, 1.0))
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"validation_loss": self._loss(batch)}

    def _loss(self, batch: Any) -> torch.Tensor:
        (text,) = batch
        return functional.cross_entropy(self.model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


class Recorder(pytorch.PyTorchCallback):
    def __init__(self) -> None:
        self.losses: list[float] = []
        self.checkpoint = ""

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        self.losses.append(float(avg_metrics["loss"]))

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.checkpoint = uuid


def _text(count: int) -> TensorDataset:
    return TensorDataset(torch.randint(0, VOCABULARY, (count, LENGTH + 1), generator=torch.Generator().manual_seed(1)))


def train(case: dict[str, Any]) -> dict[str, Any]:
    """Trains one case. case: strategy, optimizer, bits, seed, batches, and a checkpoint to continue from."""
    configuration = {
        "parallelism": case["strategy"],
        "scheduling_unit": 1,
        "checkpoint_policy": "none",
        "reproducibility": {"experiment_seed": case["seed"]},
    }
    hparams = {"global_batch_size": GLOBAL_BATCH, "optimizer": case["optimizer"], "bits": case["bits"]}
    with pytorch.init(hparams=hparams, exp_conf=configuration) as context:
        trial = LayeredTrial(context)
        pytorch.Trainer(trial, context).fit(
            max_length=pytorch.Batch(case["batches"]), latest_checkpoint=case.get("checkpoint")
        )
        model = context.get_full_model_state(trial.model)
    return {"losses": trial.recorder.losses, "checkpoint": trial.recorder.checkpoint, "model": model}


def main() -> None:
    torch.set_num_threads(1)
    os.chdir(sys.argv[1])
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1:
        dist.init_process_group("gloo")
    results = [train(case) for case in json.loads(sys.argv[2])]
    if rank == 0:
        torch.save(results, Path("found.pt"))
    if size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
