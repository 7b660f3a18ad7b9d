"""Measures what an optimizer keeps and what its step needs, by steps of its class on small parameters of its own."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import nn
from torch.optim import Optimizer

from gangline.pytorch.plan.live_bytes import Ledger, LiveBytes

_SIDE = 16
_ELEMENTS = _SIDE * _SIDE
_NUM_PARAMETERS = 4
# Of an optimizer that cannot be made anew: two numbers of 4 bytes, as for Adam.
_UNKNOWN_STATE_BYTES = 8.0


@dataclass(frozen=True, slots=True)
class UpdateSize:
    """state_bytes: of all trained parameters. temporary_bytes: of a step that handles all parameters at once.
    largest_temporary_bytes: of a step that handles one parameter after the other, for the largest one."""

    state_bytes: float
    temporary_bytes: float = 0.0
    largest_temporary_bytes: float = 0.0


def probe(optimizers: Iterable[Optimizer], is_gpu: bool) -> UpdateSize:
    """Returns the sums over all optimizers, and the largest temporary of one."""
    state = temporary = largest = 0.0
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
            kept, needed = _try(optimizer, dtype, is_at_once)
            state += kept * sum(sizes)
            if is_at_once:
                temporary += needed / _NUM_PARAMETERS * sum(sizes)
            else:
                largest = max(largest, needed * max(sizes))
    return UpdateSize(state, temporary, largest)


def _try(optimizer: Optimizer, dtype: torch.dtype, is_at_once: bool) -> tuple[float, float]:
    """Returns the bytes of state for an element of a parameter; and the most bytes of temporary tensors in a step of
    some equal parameters, for an element of one of them."""
    parameters = [nn.Parameter(torch.ones(_SIDE, _SIDE, dtype=dtype)) for _ in range(_NUM_PARAMETERS)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    # Adam's defaults have a key that AdamW sets by itself.
    known = inspect.signature(type(optimizer)).parameters
    options = {key: value for key, value in optimizer.defaults.items() if key in known}
    if is_at_once:
        options["foreach"] = True
    ledger = Ledger("cpu")
    try:
        tried = type(optimizer)(parameters, **options)
        # The state is made in the first step.
        tried.step()
        ledger.ignore([*parameters, *(value.grad for value in parameters if value.grad is not None)])
        ledger.ignore(value for entry in tried.state.values() for value in entry.values() if _is_tensor(value))
        with LiveBytes(ledger):
            tried.step()
    except Exception:  # noqa: BLE001 - an optimizer with other arguments counts as the largest usual one
        return _UNKNOWN_STATE_BYTES, 0.0
    # Whole bytes for an element, as bias corrections are single numbers.
    return _state_bytes(tried, parameters), ledger.peak // _ELEMENTS


def _state_bytes(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> float:
    values = [value for value in optimizer.state[parameters[0]].values() if _is_tensor(value)]
    # A counter of steps is one number, however large the parameter.
    return sum(value.nbytes for value in values if value.numel() > 1) / _ELEMENTS


def _is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor)
