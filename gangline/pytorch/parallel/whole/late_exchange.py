"""Handles reentrant activation checkpoints (torch.utils.checkpoint with use_reentrant=True) in models whose gradients
DistributedDataParallel exchanges during the backward pass.

Such a checkpoint runs its part of the model again in the backward pass, and then a backward pass of its own. A
parameter in two of them gets its gradient in two pieces, but DistributedDataParallel sends it after the first. Owns the
choice to exchange a model's gradients after the backward pass instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import nn


class LateExchange:
    """Decides for one model when its gradients are exchanged. is_on: whether the gradients of the running pass are
    exchanged after its backward pass.

    The first pass with such checkpoints is exchanged after the backward pass. It shows whether a gradient comes in
    pieces. If none does, the next passes are exchanged as usual.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._is_settled = False
        self._counts = Counter[int]()
        self._handles: list[Any] = []

    def end_pass(self, parameters: Sequence[nn.Parameter]) -> None:
        """Called at the end of a forward pass that ran reentrant checkpoints. The first such pass turns the late
        exchange on."""
        if self._is_settled or self.is_on:
            return
        self.is_on = True
        self._handles = [parameter.register_post_accumulate_grad_hook(self._count) for parameter in parameters]  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def keep_on(self) -> None:
        """Keeps the late exchange on for good, for a model that runs inside such a checkpoint itself."""
        self._settle(is_on=True)

    def begin_backward(self) -> None:
        """Called before a backward pass where the late exchange is on."""
        self._counts.clear()

    def end_backward(self) -> None:
        if self._handles and self._counts:
            self._settle(is_on=max(self._counts.values()) > 1)

    def _settle(self, is_on: bool) -> None:
        self.is_on, self._is_settled = is_on, True
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _count(self, parameter: Any) -> None:
        self._counts[id(parameter)] += 1
