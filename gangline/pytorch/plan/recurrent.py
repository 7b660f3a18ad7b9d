"""Lets an LSTM on the meta device keep what it keeps on a CPU.

torch runs an LSTM on a CPU with oneDNN, which keeps a workspace for the backward pass, and computes it with plain
operations on the meta device, which keep about half as many bytes. How large the workspace is, oneDNN alone knows, so a
small LSTM of the same layers runs on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from gangline.pytorch.plan.live_bytes import ByteLedger, LiveBytes

# Records of the LSTM that is tried.
_RECORDS = 4
# Arguments of torch.lstm for tensors that are padded: input, states, weights, and six options. A packed sequence has
# others, and its lengths have no values here.
_NUM_ARGUMENTS = 9
# Places among the options.
_BIDIRECTIONAL, _BATCH_FIRST = 4, 5


class LstmOfCpu(TorchFunctionMode):
    """Lets LSTMs on the meta device keep and compute what they do on a CPU, where oneDNN runs them. cast: returns an
    LSTM's arguments as autocast changes them."""

    def __init__(self, cast: Callable[[Any], Any] = lambda values: values) -> None:
        super().__init__()
        self._cast = cast

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.lstm and not kwargs and len(args) == _NUM_ARGUMENTS and _fits(args):
            cast = self._cast(args)
            kept = _kept_of(*cast)
            if kept is not None:
                return _lstm(kept, *cast)
        return func(*args, **(kwargs or {}))


def _fits(args: tuple[Any, ...]) -> bool:
    inputs, states = args[:2]
    if not inputs.is_meta or inputs.dim() != 3 or not isinstance(states, list | tuple):
        return False
    # oneDNN has no projections.
    return bool(states[0].shape == states[1].shape)


def _kept_of(
    inputs: torch.Tensor, states: tuple[torch.Tensor, ...], weights: list[torch.Tensor], *options: Any
) -> float | None:
    """Returns the bytes that this LSTM keeps beside its operands and outputs; None where oneDNN does not run it."""
    records, steps = inputs.shape[:2] if options[_BATCH_FIRST] else reversed(inputs.shape[:2])
    shapes = tuple(tuple(weight.shape) for weight in weights)
    state_shapes = tuple((state.shape[0], state.shape[2]) for state in states)
    kept = _kept_bytes((steps, inputs.shape[2]), state_shapes, shapes, inputs.dtype, options)
    return None if kept is None else kept * records


def _lstm(
    kept: float, inputs: torch.Tensor, states: tuple[torch.Tensor, ...], weights: list[torch.Tensor], *options: Any
) -> tuple[torch.Tensor, ...]:
    num_directions = 2 if options[_BIDIRECTIONAL] else 1
    shape = _Shape(num_directions * states[0].shape[2], states[0].shape[0], round(kept))
    result: tuple[torch.Tensor, ...] = _Lstm.apply(shape, inputs, *states, *weights)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return result


# oneDNN runs each layer and direction as one operation in each pass.
torch.library.define("gangline_plan::lstm_layer", "(Tensor inputs, Tensor[] weights, int width) -> Tensor")
torch.library.define("gangline_plan::lstm_layer_backward", "(Tensor inputs, Tensor[] weights) -> Tensor[]")


@torch.library.register_fake("gangline_plan::lstm_layer")  # type: ignore[untyped-decorator]  # torch leaves it untyped
def _layer(inputs: torch.Tensor, weights: list[torch.Tensor], width: int) -> torch.Tensor:
    return inputs.new_empty(*inputs.shape[:2], width)


@torch.library.register_fake("gangline_plan::lstm_layer_backward")  # type: ignore[untyped-decorator]  # torch leaves it untyped
def _layer_backward(inputs: torch.Tensor, weights: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty_like(weight) for weight in weights]


def _layer_operations(inputs: Any, weights: Any, *_: Any, **__: Any) -> int:
    """The product of a weight with each step of each record has two operations for each element of the weight."""
    rows: int = inputs[0] * inputs[1]
    numbers: int = sum(math.prod(weight) for weight in weights if len(weight) > 1)
    return 2 * rows * numbers


def _layer_backward_operations(inputs: Any, weights: Any, *_: Any, **__: Any) -> int:
    """Each product of the forward pass has one for the gradient of either factor."""
    return 2 * _layer_operations(inputs, weights)


def _real_layer_operations(inputs: Any, *weights: Any, **_: Any) -> int:
    return _layer_operations(inputs, weights[:2])


def _real_layer_backward_operations(inputs: Any, *weights: Any, **_: Any) -> int:
    return _layer_backward_operations(inputs, weights[:2])


# Formulas for the shapes of an operation's arguments.
OPERATIONS = {
    torch.ops.gangline_plan.lstm_layer: _layer_operations,
    torch.ops.gangline_plan.lstm_layer_backward: _layer_backward_operations,
    torch.ops.aten.mkldnn_rnn_layer: _real_layer_operations,
    torch.ops.aten.mkldnn_rnn_layer_backward: _real_layer_backward_operations,
}


@dataclass(frozen=True, slots=True)
class _Shape:
    """Shape of a recurrent layer for its workspace."""

    width: int  # elements of an LSTM's output
    layers: int  # number of layers, those of both directions counted
    kept: int  # bytes that it keeps beside its operands and its outputs


class _Lstm(torch.autograd.Function):
    """An LSTM as oneDNN runs it, without values."""

    @staticmethod
    def forward(ctx: Any, shape: _Shape, *operands: torch.Tensor) -> Any:
        inputs, first, second, *weights = operands
        for own in _by_layer(weights, shape.layers):
            output = torch.ops.gangline_plan.lstm_layer(inputs, own, shape.width)
        workspace = torch.empty(shape.kept, dtype=torch.uint8, device=inputs.device)
        ctx.save_for_backward(*operands, output, workspace)
        ctx.count, ctx.layers = len(operands), shape.layers
        return output, torch.empty_like(first), torch.empty_like(second)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        inputs, first, second, *weights = ctx.saved_tensors[: ctx.count]
        found: list[torch.Tensor] = []
        for own in _by_layer(weights, ctx.layers):
            found += torch.ops.gangline_plan.lstm_layer_backward(inputs, own)
        return None, *(torch.empty_like(operand) for operand in (inputs, first, second)), *found


def _by_layer(weights: list[torch.Tensor], layers: int) -> Iterator[list[torch.Tensor]]:
    count = len(weights) // layers
    for place in range(0, len(weights), count):
        yield weights[place : place + count]


class _Names(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Notes which operations run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.seen: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func._overloadpacket)
        return func(*args, **(kwargs or {}))


@cache
def _kept_bytes(
    record: tuple[int, int],
    states: tuple[tuple[int, int], ...],
    weights: tuple[tuple[int, ...], ...],
    dtype: torch.dtype,
    options: tuple[Any, ...],
) -> float | None:
    """Returns the bytes that an LSTM on the CPU keeps for a record, beside its operands and its outputs; None where
    oneDNN does not run it. record: steps and width of its input. states: layers and width of both. weights: their
    shapes."""
    ledger, names = ByteLedger("cpu"), _Names()
    steps, width = record
    shape = (_RECORDS, steps, width) if options[_BATCH_FIRST] else (steps, _RECORDS, width)
    # What counts and keeps the trial's passes does not see this LSTM.
    own_hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    with _disable_current_modes(), own_hooks, torch.enable_grad():
        inputs = torch.zeros(shape, dtype=dtype, device="cpu", requires_grad=True)
        zeros = tuple(torch.zeros(layers, _RECORDS, size, dtype=dtype, device="cpu") for layers, size in states)
        own = [torch.zeros(each, dtype=dtype, device="cpu", requires_grad=True) for each in weights]
        # Operations that return views of them would count them otherwise.
        ledger.ignore([inputs, *zeros, *own])
        with names, LiveBytes(ledger):
            outputs = torch.lstm(inputs, zeros, own, *options)
            held = {output.untyped_storage()._cdata: output.untyped_storage().nbytes() for output in outputs}
            kept = max(0, ledger.live - sum(held.values())) / _RECORDS
    return kept if torch.ops.aten.mkldnn_rnn_layer in names.seen else None
