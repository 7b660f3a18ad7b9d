"""Trains the parts of a model in one process, with the values between them cut off from their graphs as on ranks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from gangline.pytorch.parallel.staged.batch import to_send
from gangline.pytorch.parallel.staged.cutting.drawing import DrawNumbers
from gangline.pytorch.parallel.staged.layout import tensors_of
from gangline.pytorch.parallel.staged.part import Parts
from gangline.pytorch.parallel.staged.unit import find_units

_CPU = torch.device("cpu")


class _Alone:
    """Stands for the process groups of a replica whose parts are all on one rank."""

    stages = 1
    place = 0

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def share(self, tensors: Any, place: int) -> None:
        pass

    def share_bytes(self, content: bytes | None, place: int) -> bytes:
        assert content is not None
        return content


def cut(model: nn.Module, borders: Iterable[int], device: torch.device = _CPU) -> Parts:
    """borders: the numbers of the units with which the second and each later part begin."""
    units = find_units(model)
    counts = [end - begin for begin, end in pairwise([0, *sorted(borders), len(units)])]
    replicas: Any = _Alone(device)
    return Parts(
        model, units, counts, replicas=replicas, schedule="GPipe", borrow=lambda name: None, numbers=DrawNumbers(0)
    )


def train_whole(model: nn.Module, *args: Any) -> list[torch.Tensor]:
    """Returns the tensors of the model's output and its parameters' gradients. The loss is the sum of all squares."""
    model.zero_grad()
    output = model(*args)
    _loss_of(output).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return [*(tensor.detach() for tensor in tensors_of(output)), *_gradients(model)]


def train_parts(parts: Parts, model: nn.Module, *args: Any, number: int = 0) -> list[torch.Tensor]:
    """Returns the same, made as a schedule does with one microbatch. number: of its random numbers."""
    model.zero_grad()
    layout = parts.layout_for(args, {})
    borders: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
    output: Any = None
    for part in range(parts.division.count):
        sent = [to_send(tensor) for tensor in tensors_of(output)] if part else []
        received = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in sent]
        borders.append((sent, received))
        output = parts.run(part, received, layout, args, {}, number=number)
    _loss_of(output).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    for sent, received in reversed(borders):
        pairs = [(ours, theirs.grad) for ours, theirs in zip(sent, received, strict=True) if ours.requires_grad]
        if pairs:
            torch.autograd.backward(
                [ours for ours, _ in pairs],
                [torch.zeros_like(ours) if gradient is None else gradient for ours, gradient in pairs],
            )
    return [*(tensor.detach() for tensor in tensors_of(output)), *_gradients(model)]


def _loss_of(output: Any) -> torch.Tensor:
    squares = [tensor.square().sum() for tensor in tensors_of(output) if tensor.requires_grad]
    return torch.stack(squares).sum()


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    """Returns zeros for a parameter without a gradient, which a part that does not reach it may give to another."""
    return [torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in model.parameters()]
