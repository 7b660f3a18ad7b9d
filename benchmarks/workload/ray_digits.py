"""The digits example under Ray Train, as its guide for PyTorch prescribes: the same model, data, batches and epochs.

Imports nothing of Gangline, because it runs in an environment that has Ray alone. Called by benchmarks/first_trial.py.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GLOBAL_BATCH_SIZE, EPOCHS, WORKERS = 64, 10, 4
VALIDATION_SHARE = 5


def train(_: dict[str, Any]) -> None:
    """Trains on one worker, and reports accuracy and a checkpoint after each epoch."""
    torch.manual_seed(12)
    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    targets = torch.tensor(labels)
    is_validation = torch.arange(len(targets)) % VALIDATION_SHARE == 0
    loader = ray.train.torch.prepare_data_loader(
        DataLoader(
            TensorDataset(inputs[~is_validation], targets[~is_validation]),
            batch_size=GLOBAL_BATCH_SIZE // WORKERS,
            shuffle=True,
            drop_last=True,
        )
    )
    model = ray.train.torch.prepare_model(_make_model(16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.85)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for batch_inputs, batch_targets in loader:
            loss = nn.functional.cross_entropy(model(batch_inputs), batch_targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimizer.step()
        scheduler.step()
        with torch.no_grad():
            scores = model(inputs[is_validation])
        accuracy = float((scores.argmax(dim=1) == targets[is_validation]).float().mean())
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if ray.train.get_context().get_world_rank() == 0:
                torch.save(model.module.state_dict(), Path(folder) / "model.pt")
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"accuracy": accuracy}, checkpoint=checkpoint)


def _make_model(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.GroupNorm(4, width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.GroupNorm(4, 2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * 16, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


if __name__ == "__main__":
    result = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={},
        # Less than a processor for each worker, as four workers share the machine on both sides.
        scaling_config=ray.train.ScalingConfig(num_workers=WORKERS, resources_per_worker={"CPU": 0.25}),
        run_config=ray.train.RunConfig(storage_path=sys.argv[1]),
    ).fit()
    print(f"COMPLETED with accuracy {result.metrics['accuracy']:.4f}")
