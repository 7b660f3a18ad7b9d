"""The same model and data as bare.py, as a trial of Gangline."""

from __future__ import annotations

import time
from typing import Any

import torch
from cnn import make_dataset, make_model
from torch import nn
from turn import Turn

from gangline import pytorch


class BenchmarkTrial(pytorch.PyTorchTrial):
    """Trains the CNN. hyperparameters: `turnstile`, the benchmark's socket (empty: run freely), `steps_per_block`, and
    `by_record` if the data is read record by record."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(make_model())
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9))
        turnstile = context.get_hparam("turnstile")
        self.turn = Turn(turnstile, "gangline") if turnstile else None
        self.steps_per_block = context.get_hparam("steps_per_block")

    def build_training_data_loader(self) -> pytorch.DataLoader:
        batch = self.context.get_per_slot_batch_size()
        dataset = make_dataset(64 * batch, self.context.get_hparams().get("by_record", False))
        return pytorch.DataLoader(dataset, batch_size=batch, shuffle=True, drop_last=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        batch = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(make_dataset(2 * batch), batch_size=batch)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        if self.turn and batch_idx % self.steps_per_block == 0:
            self.turn.next_block()
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        if batch_idx == 0 and epoch_idx == 0:
            print(f"first step at {time.time():.6f}", flush=True)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        images, labels = batch
        return {"validation_loss": nn.functional.cross_entropy(self.model(images), labels)}
