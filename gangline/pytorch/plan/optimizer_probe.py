"""Measures what an optimizer keeps, and what its step needs and moves, by steps of its class on small parameters of its
own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gangline.pytorch.plan.live_bytes import ByteLedger, LiveBytes

_SIDE = 16
_ELEMENTS = _SIDE * _SIDE
_NUM_PARAMETERS = 4
# Of an optimizer that cannot be made anew: two numbers of 4 bytes, as for Adam.
_UNKNOWN_STATE_BYTES = 8.0


@dataclass(frozen=True, slots=True)
class UpdateSize:
    """Size of an optimizer's step over all trained parameters."""

    state_bytes: float  # the optimizer's state
    temporary_bytes: float = 0.0  # temporary tensors of a step that handles all parameters at once
    # temporary tensors for the largest parameter, if a step handles one after the other
    largest_temporary_bytes: float = 0.0
    kernels: float = 0.0  # operations that a step issues
    moved_bytes: float = 0.0  # bytes that a step reads and writes


@dataclass(frozen=True, slots=True)
class _Tried:
    """Counts of a step of the optimizer over some equal parameters."""

    state: float  # bytes of the optimizer's state for an element of a parameter
    temporary: float = 0.0  # the most temporary bytes of a step, over the number of elements of one parameter
    kernels: float = 0.0  # operations that the step issues for all of them
    moved: float = 0.0  # bytes that the step reads and writes, for an element of all of them


def probe(optimizers: Iterable[Optimizer], is_gpu: bool) -> UpdateSize:
    """Returns the sums over all optimizers, and the largest temporary of one."""
    state = temporary = largest = kernels = moved = 0.0
    for optimizer in optimizers:
        parameters = [value for group in optimizer.param_groups for value in group["params"] if value.requires_grad]
        if not parameters:
            continue
        # Torch steps all parameters at once on GPUs only, unless the user has decided.
        is_at_once = optimizer.defaults.get("foreach")
        if is_at_once is None:
            is_at_once = is_gpu and "foreach" in optimizer.defaults and not optimizer.defaults.get("fused")
        for dtype in sorted({value.dtype for value in parameters}, key=str):
            sizes = [value.numel() for value in parameters if value.dtype is dtype]
            tried = _try(optimizer, dtype, is_at_once)
            state += tried.state * sum(sizes)
            moved += tried.moved * sum(sizes)
            if is_at_once:
                temporary += tried.temporary / _NUM_PARAMETERS * sum(sizes)
                kernels += tried.kernels
            else:
                largest = max(largest, tried.temporary * max(sizes))
                kernels += tried.kernels / _NUM_PARAMETERS * len(sizes)
    return UpdateSize(state, temporary, largest, kernels, moved)


def _try(optimizer: Optimizer, dtype: torch.dtype, is_at_once: bool) -> _Tried:
    parameters = [nn.Parameter(torch.ones(_SIDE, _SIDE, dtype=dtype)) for _ in range(_NUM_PARAMETERS)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    # Adam's defaults have a key that AdamW sets by itself.
    known = inspect.signature(type(optimizer)).parameters
    options = {key: value for key, value in optimizer.defaults.items() if key in known}
    if is_at_once:
        options["foreach"] = True
    # It is for GPUs, and the trial step runs on the CPU.
    options.pop("capturable", None)
    ledger, moved = ByteLedger("cpu"), _MovedBytes()
    try:
        tried = type(optimizer)(parameters, **options)
        # The state is made in the first step.
        tried.step()
        ledger.ignore([*parameters, *(value.grad for value in parameters if value.grad is not None)])
        ledger.ignore(value for entry in tried.state.values() for value in entry.values() if _is_tensor(value))
        with LiveBytes(ledger), moved:
            tried.step()
    except Exception:  # noqa: BLE001 - an optimizer with other arguments counts as the largest usual one
        if type(optimizer) is torch.optim.AdamW:
            return _Tried(_UNKNOWN_STATE_BYTES)
        usual = _try(torch.optim.AdamW(parameters), dtype, is_at_once)
        return _Tried(_UNKNOWN_STATE_BYTES, kernels=usual.kernels, moved=usual.moved)
    # Whole bytes for an element, as bias corrections are single numbers.
    return _Tried(
        _state_bytes(tried, parameters),
        ledger.peak // _ELEMENTS,
        moved.kernels,
        moved.bytes // (_NUM_PARAMETERS * _ELEMENTS),
    )


class _MovedBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts operations, and the bytes that they read and write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.kernels = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.kernels += 1
            # An operation on lists of tensors in place returns nothing.
            written = list(_written(func, args)) if result is None else result
            self.bytes += _bytes_of((args, kwargs)) + _bytes_of(written)
        return result


def _written(func: Any, args: tuple[Any, ...]) -> Iterator[Any]:
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield value


def _bytes_of(values: Any) -> int:
    """Returns the bytes of the tensors in these values, of each tensor once."""
    tensors = {id(value): value for value in tree_leaves(values) if _is_tensor(value)}
    return sum(tensor.nbytes for tensor in tensors.values())


def _state_bytes(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> float:
    values = [value for value in optimizer.state[parameters[0]].values() if _is_tensor(value)]
    # A counter of steps is one number, however large the parameter.
    return sum(value.nbytes for value in values if value.numel() > 1) / _ELEMENTS


def _is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor)
