"""A trial in which one rank stands still in one place, as source, and its configuration."""

from __future__ import annotations

from typing import Any

# Where the rank stands still, at the batch HANG_BATCH of the rank HANG_RANK.
SOURCE = """
import os
import threading
import time

import torch
from fsspec.implementations.local import LocalFileOpener
from torch import nn
from torch.utils.data import Dataset

import gangline
from gangline import pytorch

HANG = gangline.get_cluster_info().trial.hparams
NOW = {"batch": -1, "validations": 0}


def stand_still(place):
    if HANG["place"] == place and int(os.environ["RANK"]) == HANG["rank"] and NOW["batch"] >= HANG["batch"]:
        print("standing in", place, flush=True)
        threading.Event().wait()


def write_to_storage(file, *args, write=LocalFileOpener.write):
    if "/checkpoints/" in file.path:
        stand_still("storage")
    return write(file, *args)


LocalFileOpener.write = write_to_storage


class Data(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        stand_still("loader")
        return torch.randn(4), torch.randn(1)


class Stand(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        stand_still("backward")
        return gradient


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x):
        x = Stand.apply(self.second(torch.tanh(self.first(x))))
        stand_still("forward")
        return x


class Callback(pytorch.PyTorchCallback):
    def on_training_workload_end(self, avg_metrics, batch_metrics):
        stand_still("callback")


class HangingTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        print("pid", os.getpid(), os.environ["RANK"], flush=True)
        stand_still("init") if HANG["batch"] < 0 else None
        self.context = context
        self.model = context.wrap_model(nn.Sequential(nn.Linear(4, 8), Block(), Block(), Block(), nn.Linear(8, 1)))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.optimizer = context.wrap_optimizer(optimizer)
        self.optimizer.register_step_pre_hook(lambda *_: stand_still("optimizer"))

    def build_callbacks(self):
        return {"own": Callback()} if HANG["place"] == "callback" else {}

    def build_training_data_loader(self):
        return pytorch.DataLoader(Data(), batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self):
        return pytorch.DataLoader(Data(), batch_size=512)

    def train_batch(self, batch, epoch_idx, batch_idx):
        NOW["batch"] = batch_idx
        if batch_idx == HANG["batch"] or batch_idx == 1:
            print("at batch", batch_idx, flush=True)
        stand_still("train_batch")
        if HANG["place"] == "stopped":
            time.sleep(0.01)
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch, batch_idx):
        if batch_idx == 1:
            stand_still("validation")
        inputs, targets = batch
        return {"error": nn.functional.mse_loss(self.model(inputs), targets)}
"""


def hanging_config(strategy: str, place: str, rank: int, *, unit: int = 100, **watch: Any) -> dict[str, Any]:
    """place: as SOURCE names it. batch: from which on the rank stands still; it is 4, or -1 for the start."""
    return {
        "entrypoint": "train:HangingTrial",
        "hyperparameters": {"global_batch_size": 8},
        "searcher": {"name": "single", "metric": "error", "max_length": {"batches": 100000}},
        "scheduling_unit": unit,
        "min_validation_period": {"batches": 2 if place == "validation" else 100000},
        "parallelism": strategy,
        "hang_detection": {"seconds": 2, "factor": 1, "rest_seconds": 3, **watch},
    }
