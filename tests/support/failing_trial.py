"""Trials that go wrong in one way each, as source, for tests that read what the cluster says about it.

Owns the sources and the configuration; `write_code` puts one into a folder. Used by tests/e2e.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_TRIAL = """
import os
import signal

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gangline import pytorch


class FailingTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.rank = context.distributed.get_rank()
        {init}
        self.model = context.wrap_model(nn.Linear(4, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.05))

    def build_training_data_loader(self):
        data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
        return pytorch.DataLoader(data, batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self):
        return pytorch.DataLoader(TensorDataset(torch.randn(8, 4), torch.randn(8, 1)), batch_size=2)

    def train_batch(self, batch, epoch_idx, batch_idx):
        {batch}
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {{"loss": loss}}

    def evaluate_batch(self, batch):
        return {{"error": torch.zeros(1)}}
"""


def failing_source(init: str = "pass", batch: str = "pass") -> str:
    """init, batch: one statement at the start of __init__ or of train_batch."""
    return _TRIAL.format(init=init, batch=batch)


def write_code(folder: Path, source: str) -> Path:
    """The code folder."""
    code = folder / "code"
    code.mkdir()
    (code / "model_def.py").write_text(source)
    return code


def failing_config(slots: int = 4, max_restarts: int = 0, **more: Any) -> str:
    return yaml.safe_dump(
        {
            "name": "failing",
            "entrypoint": "model_def:FailingTrial",
            "hyperparameters": {"global_batch_size": 8},
            "searcher": {"name": "single", "metric": "error", "max_length": {"batches": 8}},
            "resources": {"slots_per_trial": slots},
            "max_restarts": max_restarts,
            **more,
        }
    )
