"""Models with real parameters that sleep in place of computing, as an accelerator leaves the processor free for
exchanges.

Each layer has a time for its backward pass; its forward pass takes half of that. Its gradients are constants. The
measured exchange of gradients is real.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn


class _Sleep(torch.autograd.Function):
    """Sleeps in place of computing; the gradient of each parameter is one small constant."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, seconds: float, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.seconds, ctx.parameters = seconds, parameters
        time.sleep(seconds / 2)
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(ctx.seconds)
        return gradients[0], None, *(torch.full_like(parameter, 1e-3) for parameter in ctx.parameters)


class Layer(nn.Module):
    """Emulates one layer. shapes: of its parameters. seconds: of its backward pass."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], seconds: float) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes)
        self.seconds = seconds

    def forward(self, inputs: torch.Tensor) -> Any:
        return _Sleep.apply(inputs, self.seconds, *self.weights)  # type: ignore[no-untyped-call]  # torch leaves it so


class Stack(nn.Module):
    """Runs layers one after another; the last one may share the first one's parameters, as an output layer does with
    the embedding. The gradients of shared parameters then come last."""

    def __init__(self, layers: Sequence[Layer], tied_seconds: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self._tied_seconds = tied_seconds

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = layer(inputs)
        if self._tied_seconds:
            weights = list(self.layers[0].parameters())
            inputs = _Sleep.apply(inputs, self._tied_seconds, *weights)  # type: ignore[no-untyped-call]  # as above
        return inputs.sum()


def emlp() -> Stack:
    """Builds 12 wide layers, 48 MiB, 180 ms."""
    return Stack([Layer([(1024, 1024), (1024,)], 0.015) for _ in range(12)])


def edeep() -> Stack:
    """Builds 200 narrow layers, 7.1 MiB, 150 ms."""
    return Stack([Layer([(96, 96), (96,)], 0.00075) for _ in range(200)])


def egpt() -> Stack:
    """Builds 8 blocks of width 320 below a tied embedding, 99 tensors, 47.6 MiB, 220 ms."""
    d, vocabulary = 320, 8192
    block: list[tuple[int, ...]] = [(d,), (d,), (3 * d, d), (3 * d,), (d, d), (d,)]
    block += [(d,), (d,), (4 * d, d), (4 * d,), (d, 4 * d), (d,)]
    blocks = [Layer(shapes, 0.0108) for shapes in (block[:6], block[6:]) for _ in range(8)]
    interleaved = [blocks[half * 8 + index] for index in range(8) for half in (0, 1)]
    return Stack([Layer([(vocabulary, d)], 0.0), *interleaved, Layer([(d,), (d,)], 0.0)], tied_seconds=0.047)


def eone() -> Stack:
    """Builds one tensor of 16 MiB, which cannot be divided."""
    return Stack([Layer([(2048, 2048)], 0.05)])


def etail() -> Stack:
    """Builds small layers, and 24 MiB whose gradients come last."""
    return Stack([Layer([(2048, 3072)], 0.02), *(Layer([(128, 128), (128,)], 0.002) for _ in range(30))])


MODELS: dict[str, Callable[[], Stack]] = {"emlp": emlp, "edeep": edeep, "egpt": egpt, "eone": eone, "etail": etail}
