"""Trains the two parts of a model in two threads, each with its own copy of the model, as two ranks do."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, Queue
from threading import Barrier, BrokenBarrierError
from typing import Any, TypeVar

import torch
from torch import nn

from gangline.pytorch.parallel.staged.batch import to_send
from gangline.pytorch.parallel.staged.cutting.drawing import DrawNumbers
from gangline.pytorch.parallel.staged.layout import TensorShape, tensors_of
from gangline.pytorch.parallel.staged.part import Parts
from gangline.pytorch.parallel.staged.unit import find_units

_SECONDS = 60
T = TypeVar("T")


class _Meeting:
    """What both threads have in common. forth, back: values of the first part, and their gradients."""

    def __init__(self) -> None:
        self.barrier = Barrier(2, timeout=_SECONDS)
        self.value: Any = None
        self.forth: Queue[list[torch.Tensor] | None] = Queue()
        self.back: Queue[list[torch.Tensor | None] | None] = Queue()

    def abort(self) -> None:
        """Ends the waiting of the other thread."""
        self.barrier.abort()
        self.forth.put(None)
        self.back.put(None)


def _get(queue: Queue[list[T] | None]) -> list[T]:
    """Raises Empty where the other thread has failed."""
    values = queue.get(timeout=_SECONDS)
    if values is None:
        raise Empty
    return values


class _Rank:
    """Stands for the process groups of a replica."""

    device = torch.device("cpu")
    stages = 2

    def __init__(self, meeting: _Meeting, place: int) -> None:
        self._meeting = meeting
        self.place = place

    def share_bytes(self, content: bytes | None, place: int) -> bytes:
        if self.place == place:
            self._meeting.value = content
        self._meeting.barrier.wait()
        value: bytes = self._meeting.value
        self._meeting.barrier.wait()
        return value

    def send(self, tensors: Sequence[torch.Tensor], place: int) -> None:
        self._meeting.forth.put([tensor.detach().clone() for tensor in tensors])

    def receive(self, shapes: Sequence[TensorShape], place: int) -> list[torch.Tensor]:
        return _get(self._meeting.forth)


def train_apart(
    model: nn.Module, border: int, batches: Sequence[torch.Tensor], copies: list[Any] | None = None
) -> list[list[torch.Tensor]]:
    """Trains a model without a step. border: the number of the unit with which the second part begins. Returns the
    tensors of the output for each batch, and in the end the gradients of all parameters, each from the part that has
    some. The loss is the sum of all squares. copies: gets the model as each of the parts has it. Raises what one of the
    parts raises."""
    meeting = _Meeting()
    models = [model, copy.deepcopy(model)]
    if copies is not None:
        copies += models
    outputs: list[list[torch.Tensor]] = []

    def train(place: int) -> None:
        try:
            _train(place)
        except BaseException:
            meeting.abort()
            raise

    def _train(place: int) -> None:
        own = models[place]
        units = find_units(own)
        rank: Any = _Rank(meeting, place)
        counts = [border, len(units) - border]
        parts = Parts(
            own, units, counts, replicas=rank, schedule="GPipe", borrow=lambda name: None, numbers=DrawNumbers(0)
        )
        for batch in batches:
            inputs = batch.clone()
            layout = parts.layout_for((inputs,), {})
            if place == 0:
                sent = [to_send(each) for each in tensors_of(parts.run(0, [], layout, (inputs,), {}))]
                rank.send(sent, 1)
                pairs = zip(sent, _get(meeting.back), strict=True)
                known = [(ours, gradient) for ours, gradient in pairs if ours.requires_grad and gradient is not None]
                torch.autograd.backward([ours for ours, _ in known], [gradient for _, gradient in known])
            else:
                received = [each.requires_grad_(each.is_floating_point()) for each in rank.receive((), 0)]
                output = tensors_of(parts.run(1, received, layout, (inputs,), {}))
                torch.stack([each.square().sum() for each in output if each.requires_grad]).sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                outputs.append([each.detach() for each in output])
                meeting.back.put([each.grad for each in received])

    with ThreadPoolExecutor(2) as pool:
        errors = [future.exception() for future in [pool.submit(train, place) for place in range(2)]]
    real = [error for error in errors if error is not None and not isinstance(error, (BrokenBarrierError, Empty))]
    for error in (*real, *filter(None, errors)):
        raise error
    pairs = zip(*(each.parameters() for each in models), strict=True)
    gradients = [[each.grad for each in pair if each.grad is not None] for pair in pairs]
    return [*outputs, [torch.stack(each).sum(0) if each else torch.zeros(()) for each in gradients]]
