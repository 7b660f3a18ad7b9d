"""Calls the trial's methods for one batch by the names of their arguments, in any order.

The way is decided once before training: inspecting a signature takes longer than many a batch. Called by the training
loop and the evaluation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gangline.errors import invalid
from gangline.pytorch.trial.trial import PyTorchTrial

# Positions of the arguments in train_batch(batch, epoch_idx, batch_idx).
_PLACES = {"epoch_idx": 1, "batch_idx": 2}


def train_call(trial: PyTorchTrial) -> Callable[[Any, int, int], Any]:
    """Returns a function of batch, epoch_idx and batch_idx. Raises GanglineError where train_batch does not take
    them."""
    method: Callable[..., Any] = trial.train_batch
    signature = inspect.signature(method)
    if _takes(signature, batch=0, epoch_idx=0, batch_idx=0):
        return lambda batch, epoch, index: method(batch=batch, epoch_idx=epoch, batch_idx=index)
    if _takes(signature, 0, epoch_idx=0, batch_idx=0):
        return lambda batch, epoch, index: method(batch, epoch_idx=epoch, batch_idx=index)
    # Pass by order, unless an argument's name shows another order.
    names = list(signature.parameters)
    is_in_order = all(name not in names or names.index(name) == place for name, place in _PLACES.items())
    if is_in_order and _takes(signature, 0, 0, 0):
        return method
    raise _unusual(trial, "train_batch", signature, "(self, batch, epoch_idx, batch_idx)")


def evaluate_call(trial: PyTorchTrial) -> Callable[[Any, int], Any]:
    """Returns a function of batch and batch_idx, which is passed on only where evaluate_batch names it, or needs it.
    Raises GanglineError where evaluate_batch takes neither one of the two nor both."""
    method: Callable[..., Any] = trial.evaluate_batch
    signature = inspect.signature(method)
    if "batch_idx" in signature.parameters:
        if _takes(signature, batch=0, batch_idx=0):
            return lambda batch, index: method(batch=batch, batch_idx=index)
        if _takes(signature, 0, batch_idx=0):
            return lambda batch, index: method(batch, batch_idx=index)
    elif _takes(signature, batch=0):
        return lambda batch, index: method(batch=batch)
    elif _takes(signature, 0):
        return lambda batch, index: method(batch)
    elif _takes(signature, 0, 0):
        return method
    raise _unusual(trial, "evaluate_batch", signature, "(self, batch) or (self, batch, batch_idx)")


def _takes(signature: inspect.Signature, *arguments: Any, **named: Any) -> bool:
    try:
        signature.bind(*arguments, **named)
    except TypeError:
        return False
    return True


def _unusual(trial: PyTorchTrial, name: str, signature: inspect.Signature, wanted: str) -> Exception:
    parameters = ", ".join(signature.parameters) or "nothing"
    return invalid("pytorch.signature", f"{type(trial).__name__}.{name} takes {parameters}; define it as {wanted}")
