"""Measures how much memory one forward and backward pass needs beside parameters and gradients, at each moment."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count, shape_wrapper

from gangline.pytorch.plan import recurrent
from gangline.pytorch.plan.live_bytes import ByteLedger, LiveBytes
from gangline.pytorch.plan.model_size import Moment

_flash_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True)
class _Point:
    """The time between a gradient and the one before it. The first point is the forward pass, which the second one has
    too."""

    working: int  # the most working bytes in this time
    copied: int  # bytes of copies of parameters, in the second point without those of the forward pass
    gradients: int  # bytes of all gradients until then
    parameter: int | None  # id of the parameter whose gradient came next; None at the end of a pass


class StepPeak:
    """Counts the bytes of live tensors in the passes that run inside of `counting`, without those of the models.
    Gradients of parameters are apart from the others, because strategies keep them in different ways, and copies of
    parameters, because they do not grow with the batch. unreached: ids of trained parameters without a gradient, once a
    backward pass has ended."""

    def __init__(self, models: Sequence[nn.Module], batch: Any, device: torch.device) -> None:
        self._ledger, self._copies = ByteLedger(device.type), ByteLedger(device.type)
        self._models = models
        self._gradient_bytes = 0
        self._points: list[_Point] = []
        self.unreached: frozenset[int] = frozenset()
        self._ledger.add(tree_leaves(batch))
        for model in models:
            self._ledger.ignore(model.parameters())
            self._ledger.ignore(model.buffers())

    def counting(self) -> LiveBytes:
        """Returns the context in which tensors are counted."""
        return LiveBytes(self._ledger)

    def add_copy(self, copy: torch.Tensor) -> None:
        """Called with each new copy of a parameter in another type."""
        self._ledger.ignore([copy])
        self._copies.add([copy])

    def is_copy(self, storage: torch.UntypedStorage) -> bool:
        return storage in self._copies

    def backward(self, loss: torch.Tensor) -> None:
        """Runs the backward pass. The parameters' gradients are dropped afterwards."""
        parameters = {id(value): value for model in self._models for value in model.parameters() if value.requires_grad}
        handles = [
            value.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            for value in parameters.values()
        ]
        self._note(None)
        try:
            if loss.numel() != 1:
                raise RuntimeError("the loss is no single number")
            # From a tensor it would run outside of the modes for functions, in which recomputed parts must run.
            torch.autograd.backward(get_gradient_edge(loss), torch.ones_like(loss))
            self._note(None)
            self.unreached = frozenset(key for key, value in parameters.items() if value.grad is None)
        finally:
            for handle in handles:
                handle.remove()
            for value in parameters.values():
                value.grad = None

    def moments(self, records: int) -> tuple[Moment, ...]:
        """Returns the moments that need most, for batches of so many records. Empty before a backward pass."""
        total = self._gradient_bytes
        points = {
            (float(each.working + each.copied), each.gradients / max(1, total)): each
            for each in sorted(self._points, key=lambda each: each.working)
        }
        return tuple(
            Moment(points[point].working / records, point[1], points[point].copied) for point in outermost(points)
        )

    def peaks_of(self, parts: Sequence[Collection[int]]) -> list[int]:
        """Returns the most bytes until the last gradient of each part has come, since the last one of another part. 0
        for a part without one. parts: ids of the parameters."""
        return [max((point.working for point in self._points if point.parameter in part), default=0) for part in parts]

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is None or gradient.layout is not torch.strided:
            return
        self._note(id(parameter))
        self._ledger.ignore([gradient])
        self._gradient_bytes += gradient.nbytes
        self._ledger.restart()

    def _note(self, parameter: int | None) -> None:
        self._points.append(_Point(self._ledger.peak, self._copies.peak, self._gradient_bytes, parameter))
        self._copies.restart()


def outermost(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the corners of the convex hull on its upper right side, the largest first number first. One of them is
    the maximum of a x + b y over all points, for every a and b of 0 or more."""
    kept: list[tuple[float, float]] = []
    for x, y in sorted(set(points), reverse=True):
        if kept and y <= kept[-1][1]:
            continue
        while len(kept) > 1 and _is_inside(kept[-2], kept[-1], (x, y)):
            kept.pop()
        kept.append((x, y))
    return kept


def _is_inside(first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    """Whether the middle point is not beyond the line of the other two."""
    return (first[0] - last[0]) * (middle[1] - first[1]) <= (first[0] - middle[0]) * (last[1] - first[1])


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts floating-point operations by torch's formulas, and those of the CPU's fused attention and LSTM. total: so
    far. convolved: those of them that convolutions have whose kernels are larger than one point; the others compute as
    matrix products do. streamed_bytes: read and written by the operations without a formula, which compute little for
    each byte. torch's own counter has hooks that keep what recomputation would free."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.total = 0
        self.convolved = 0
        self.streamed_bytes = 0

    @property
    def convolved_ratio(self) -> float:
        return self.convolved / max(1, self.total)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = _FORMULAS.get(func._overloadpacket)
        if formula is None:
            # In inference mode operations come here whole, whose parts have formulas.
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
            result = func(*args, **kwargs)
            self.streamed_bytes += _streamed_bytes(func, (args, kwargs), result)
            return result
        result = func(*args, **kwargs)
        count = formula(*args, **kwargs, out_val=result)
        self.total += count
        if _is_convolution(func, args):
            self.convolved += count
        return result


def _streamed_bytes(func: Any, operands: Any, result: Any) -> int:
    """Returns the bytes that an operation reads and writes."""
    if func.is_view or func._overloadpacket in _NOT_WRITTEN:
        return 0
    read, written = (
        sum(value.nbytes for value in tree_leaves(values) if isinstance(value, torch.Tensor))
        for values in (operands, result)
    )
    return 2 * written if func._overloadpacket in _PICKING else read + written


def _is_convolution(func: Any, args: Sequence[Any]) -> bool:
    """args: of the operation. A kernel for each channel alone (a depthwise convolution) does not count."""
    place = _KERNEL_PLACES.get(func._overloadpacket)
    if place is None:
        return False
    _, channels, *points = args[place].shape
    return bool(channels > 1 and math.prod(points) > 1)


def _attention_operations(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    count: int = sdpa_flop_count(query, key, value)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return count


def _attention_backward_operations(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    count: int = sdpa_backward_flop_count(gradient, query, key, value)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return count


_own_formulas = {
    _flash_attention: _attention_operations,
    _flash_attention_backward: _attention_backward_operations,
    **recurrent.OPERATIONS,
}
_aten = torch.ops.aten
# What gives memory without writing it, and what reads as much of its input as it writes.
_NOT_WRITTEN = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided}
_PICKING = {_aten.embedding, _aten.gather, _aten.index, _aten.index_select}
# Where a convolution has its kernel among its arguments.
_KERNEL_PLACES = {torch.ops.aten.convolution: 1, torch.ops.aten._convolution: 1, torch.ops.aten.convolution_backward: 2}
# Formulas get the shapes of tensors.
_FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    **{operation: shape_wrapper(formula) for operation, formula in _own_formulas.items()},  # type: ignore[no-untyped-call]  # torch leaves it untyped
}
