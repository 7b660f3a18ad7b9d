"""One architecture as data: how to make the model, its records, its loss; and losses that several of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WORDS, LENGTH, CLASSES = 50, 8, 4
# What single precision leaves after some steps.
SINGLE = 1e-4
Records = dict[str, torch.Tensor]
Loss = Callable[[nn.Module, Records], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Architecture:
    """A published model with a way to train it."""

    name: str
    family: str
    library: str
    make: Callable[[], nn.Module]  # returns the model with random weights
    # returns as many records as asked for, by name; records are their first dimension
    records: Callable[[int], Records]
    loss: Loss  # a mean over records
    has_validation: bool = True  # whether evaluation mode has the loss too
    number_type: torch.dtype = torch.float64  # type of parameters and inputs
    tolerance: float = 1e-8  # the largest difference to one process that counts as equal


def make_model(architecture: Architecture) -> nn.Module:
    """Returns the model in its type of numbers, without dropout: ranks and microbatches would draw other masks."""
    model = architecture.make().to(architecture.number_type)
    for module in model.modules():
        if isinstance(module, (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)):
            module.p = 0.0
    return model.train()


def make_records(architecture: Architecture, number: int) -> Records:
    return {
        name: tensor.to(architecture.number_type) if tensor.is_floating_point() else tensor
        for name, tensor in architecture.records(number).items()
    }


def numbers(records: int, *shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(records, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whole(records: int, *shape: int, least: int = 0, limit: int = CLASSES, seed: int = 2) -> torch.Tensor:
    """Returns random whole numbers from least to below limit."""
    return torch.randint(least, limit, (records, *shape), generator=torch.Generator().manual_seed(seed))


def images(name: str = "x", size: int = 32, channels: int = 3) -> Callable[[int], Records]:
    return lambda records: {name: numbers(records, channels, size, size), "classes": whole(records)}


def classify(model: nn.Module, records: Records) -> torch.Tensor:
    """Compares the classes of images, which the model gets by place."""
    inputs, classes = records.values()
    return functional.cross_entropy(main_tensor(model(inputs)), classes)


def classify_named(model: nn.Module, records: Records) -> torch.Tensor:
    inputs = {name: tensor for name, tensor in records.items() if name != "classes"}
    return functional.cross_entropy(main_tensor(model(**inputs)), records["classes"])


def predict_words(model: nn.Module, records: Records) -> torch.Tensor:
    """Compares each place's word of a language model with the word in `wanted`."""
    inputs = {name: tensor for name, tensor in records.items() if name != "wanted"}
    output = main_tensor(model(**inputs))
    return functional.cross_entropy(output.flatten(0, 1), records["wanted"].flatten())


def imitate(model: nn.Module, records: Records) -> torch.Tensor:
    """Compares the first tensor of the output with fixed numbers, the same for all records."""
    output = main_tensor(model(**records))
    wanted = torch.cos(torch.arange(output[0].numel(), dtype=output.dtype)).reshape(output[0].shape)
    return functional.mse_loss(output, wanted.expand_as(output))


def main_tensor(output: Any) -> torch.Tensor:
    """Returns the first tensor of floating-point numbers in an output."""
    if isinstance(output, torch.Tensor):
        return output
    values = output.values() if isinstance(output, dict) else output
    return next(value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point())
