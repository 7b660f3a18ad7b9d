"""Detects reentrant activation checkpoints (torch.utils.checkpoint with use_reentrant=True) while they run.

Such a checkpoint runs its part of the model without gradients first, and again in the backward pass, which then has a
backward pass of its own. Used by strategies whose own work around a model depends on that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.utils.checkpoint import CheckpointFunction


class Notice:
    """Counts checkpoints. num_passes: forward passes of reentrant checkpoints so far. depth: those under way, also in a
    backward pass. Code that runs in every step reads the attributes, because a call would cost it time."""

    num_passes = 0
    depth = 0


def install() -> None:
    """Starts the detection by wrapping torch's CheckpointFunction. May be called again."""
    if hasattr(CheckpointFunction.forward, "__wrapped__"):
        return
    CheckpointFunction.forward = staticmethod(_noticed(CheckpointFunction.forward, num_passes=1))  # type: ignore[method-assign]
    CheckpointFunction.backward = staticmethod(_noticed(CheckpointFunction.backward, num_passes=0))  # type: ignore[method-assign]


def is_inside() -> bool:
    """Returns whether the calling code runs in such a checkpoint."""
    return Notice.depth > 0


def _noticed(function: Callable[..., Any], num_passes: int) -> Callable[..., Any]:
    @wraps(function)
    def call(*arguments: Any) -> Any:
        Notice.num_passes += num_passes
        Notice.depth += 1
        try:
            return function(*arguments)
        finally:
            Notice.depth -= 1

    return call
