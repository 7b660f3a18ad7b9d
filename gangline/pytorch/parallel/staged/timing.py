"""Measures the time of one unit of a model: its forward and backward pass on one microbatch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from gangline.pytorch.parallel.staged.layout import tensors_of

# Rounds over all units, of which the fastest counts for each unit.
ROUNDS = 3
# Passes of which the fastest counts, after one that is not counted.
_PASSES = 3


def measure(call: Callable[..., Any], args: tuple[Any, ...], parameters: Sequence[nn.Parameter]) -> float:
    """Returns the seconds of the fastest of some passes. Leaves no gradients. The caller restores buffers and random
    numbers."""
    with torch.enable_grad():
        return min([_pass(call, args, parameters) for _ in range(1 + _PASSES)][1:])


def _pass(call: Callable[..., Any], args: tuple[Any, ...], parameters: Sequence[nn.Parameter]) -> float:
    # Clones, because a module may change its input in place.
    own = tuple(_leaf(value).clone() if isinstance(value, torch.Tensor) else value for value in args)
    inputs = [value for value in own if isinstance(value, torch.Tensor)]
    _wait(own)
    began = time.perf_counter()
    outputs = [tensor for tensor in tensors_of(call(*own)) if tensor.requires_grad]
    # The module may have frozen some of its parameters by now.
    leaves = [each for each in (*inputs, *parameters) if each.requires_grad]
    if outputs and leaves:
        torch.autograd.grad(outputs, leaves, [torch.ones_like(tensor) for tensor in outputs], allow_unused=True)
    _wait(own)
    return time.perf_counter() - began


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.is_floating_point())


def _wait(values: tuple[Any, ...]) -> None:
    if any(isinstance(value, torch.Tensor) and value.is_cuda for value in values):
        torch.cuda.synchronize()
