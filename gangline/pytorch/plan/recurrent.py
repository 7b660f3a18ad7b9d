"""Lets an LSTM on the meta device keep what it keeps on a CPU.

torch runs an LSTM on a CPU with oneDNN, which keeps a workspace for the backward pass, and computes it with plain
operations on the meta device, which keep about half as many bytes. How large the workspace is, oneDNN alone knows, so a
small LSTM of the same layers runs on the CPU.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gangline.pytorch.plan.live_bytes import Ledger, LiveBytes

# Records of the LSTM that is tried.
_RECORDS = 4
# Arguments of torch.lstm for tensors that are padded: input, states, weights, and six options. A packed sequence has
# others, and its lengths have no values here.
_NUM_ARGUMENTS = 9
# Among the options.
_BIDIRECTIONAL = 4


class LstmOfCpu(TorchFunctionMode):
    """Lets LSTMs on the meta device keep what they keep on a CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.lstm and not kwargs and len(args) == _NUM_ARGUMENTS and _fits(args):
            return _lstm(*args)
        return func(*args, **(kwargs or {}))


def _fits(args: tuple[Any, ...]) -> bool:
    inputs, states = args[:2]
    if not inputs.is_meta or inputs.dim() != 3 or not isinstance(states, list | tuple):
        return False
    # oneDNN has no projections.
    return bool(states[0].shape == states[1].shape)


def _lstm(
    inputs: torch.Tensor, states: tuple[torch.Tensor, ...], weights: list[torch.Tensor], *options: Any
) -> tuple[torch.Tensor, ...]:
    is_batch_first = bool(options[-1])
    records, steps = inputs.shape[:2] if is_batch_first else reversed(inputs.shape[:2])
    shapes = tuple(tuple(weight.shape) for weight in weights)
    state_shapes = tuple((state.shape[0], state.shape[2]) for state in states)
    kept = _kept_bytes((steps, inputs.shape[2]), state_shapes, shapes, inputs.dtype, options)
    num_directions = 2 if options[_BIDIRECTIONAL] else 1
    width = num_directions * states[0].shape[2]
    result: tuple[torch.Tensor, ...] = _Lstm.apply(width, round(kept * records), inputs, *states, *weights)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return result


# oneDNN computes each pass of an LSTM as one operation. The product of a weight with the input of each step and record
# counts two operations for each of its elements, and two such products belong to the backward pass.
torch.library.define("gangline_plan::lstm", "(Tensor inputs, Tensor[] states, Tensor[] weights, int width) -> Tensor[]")
torch.library.define("gangline_plan::lstm_backward", "(Tensor inputs, Tensor[] states, Tensor[] weights) -> Tensor[]")


@torch.library.register_fake("gangline_plan::lstm")  # type: ignore[untyped-decorator]  # torch leaves it untyped
def _forward(
    inputs: torch.Tensor, states: list[torch.Tensor], weights: list[torch.Tensor], width: int
) -> list[torch.Tensor]:
    return [inputs.new_empty(*inputs.shape[:2], width), *(torch.empty_like(state) for state in states)]


@torch.library.register_fake("gangline_plan::lstm_backward")  # type: ignore[untyped-decorator]  # torch leaves it untyped
def _backward(inputs: torch.Tensor, states: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty_like(operand) for operand in (inputs, *states, *weights)]


def _forward_operations(inputs: Any, states: Any, weights: Any, *_: Any, **__: Any) -> int:
    rows: int = inputs[0] * inputs[1]
    numbers: int = sum(math.prod(weight) for weight in weights if len(weight) > 1)
    return 2 * rows * numbers


def _backward_operations(inputs: Any, states: Any, weights: Any, *_: Any, **__: Any) -> int:
    return 2 * _forward_operations(inputs, states, weights)


# For torch's counter of operations.
OPERATIONS = {
    torch.ops.gangline_plan.lstm: _forward_operations,
    torch.ops.gangline_plan.lstm_backward: _backward_operations,
}


class _Lstm(torch.autograd.Function):
    """An LSTM that keeps so many bytes beside its operands and its outputs. width: of its output."""

    @staticmethod
    def forward(ctx: Any, width: int, kept: int, *operands: torch.Tensor) -> Any:
        inputs, first, second, *weights = operands
        outputs = torch.ops.gangline_plan.lstm(inputs, [first, second], weights, width)
        ctx.save_for_backward(*operands, outputs[0], torch.empty(kept, dtype=torch.uint8, device=inputs.device))
        ctx.count = len(operands)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        inputs, first, second, *weights = ctx.saved_tensors[: ctx.count]
        return None, None, *torch.ops.gangline_plan.lstm_backward(inputs, [first, second], weights)


@cache
def _kept_bytes(
    record: tuple[int, int],
    states: tuple[tuple[int, int], ...],
    weights: tuple[tuple[int, ...], ...],
    dtype: torch.dtype,
    options: tuple[Any, ...],
) -> float:
    """Returns the bytes that an LSTM on the CPU keeps for a record, beside its operands and its outputs. record: steps
    and width of its input. states: layers and width of both. weights: their shapes."""
    ledger = Ledger("cpu")
    is_batch_first = bool(options[-1])
    steps, width = record
    shape = (_RECORDS, steps, width) if is_batch_first else (steps, _RECORDS, width)
    inputs = torch.zeros(shape, dtype=dtype, device="cpu", requires_grad=True)
    zeros = tuple(torch.zeros(layers, _RECORDS, size, dtype=dtype, device="cpu") for layers, size in states)
    own = [torch.zeros(each, dtype=dtype, device="cpu", requires_grad=True) for each in weights]
    # Operations that return views of them would count them otherwise.
    ledger.ignore([inputs, *zeros, *own])
    # Hooks of the trial's passes, as those of recomputation, do not see what this LSTM keeps.
    own_hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    with torch.enable_grad(), own_hooks, LiveBytes(ledger):
        outputs = torch.lstm(inputs, zeros, own, *options)
        held = {output.untyped_storage()._cdata: output.untyped_storage().nbytes() for output in outputs}
        return max(0, ledger.live - sum(held.values())) / _RECORDS
