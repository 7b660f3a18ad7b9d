"""The small CNN that the benchmarks train, on tensors made in memory: it imports nothing heavier than torch."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


class Records(TensorDataset):
    """Makes every loader read record by record, as it would read images in files."""


def make_dataset(length: int, by_record: bool = False) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(length, 1, 14, 14, generator=generator)
    dataset_class = Records if by_record else TensorDataset
    return dataset_class(images, torch.randint(0, 10, (length,), generator=generator))
