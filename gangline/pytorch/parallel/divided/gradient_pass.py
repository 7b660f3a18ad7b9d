"""Lets torch.autograd.grad go through a divided model, as penalties on gradients need it.

torch frees a block's whole parameters as soon as a backward pass has left the block. A pass with create_graph=True
records operations on them for the next pass, which would find them empty. So such a pass leaves its blocks whole until
the end of context.backward, also where the model is called again before that. At the end of any pass torch also reduces
the gradients that earlier batches have aggregated.

A trial may also use a parameter outside of the module that it is gathered for, where the module's forward pass leaves
it whole. Where the module is called twice, the backward pass of the first call needs the parameter from its begin on,
before it reaches the module. Used by the strategies that divide models.
"""

from __future__ import annotations

from typing import Any

import torch

# Internal names of torch's parameter groups. A release without one of them is left as it is.
_NEEDED = (
    "pre_backward",
    "post_backward",
    "reshard",
    "unshard",
    "wait_for_unshard",
    "reshard_after_backward",
    "reduce_grads",
    "_post_forward_indices",
    "_reshard_after_forward",
)


class GradientPasses:
    """Keeps the state of passes over all divided models of one trial, because one pass goes through several of them.
    is_exchanging: whether the running pass belongs to context.backward and its gradients go to the other ranks."""

    def __init__(self) -> None:
        self.is_exchanging = False
        self._keeps = False
        # Groups that a forward pass has left whole, and a backward pass through another forward pass has reached.
        self._awaited: list[Any] = []
        # Groups whose whole parameters are in the graph of a gradient.
        self._held: list[Any] = []

    def begin(self) -> None:
        """Called at the begin of a pass of context.backward, on all ranks in step."""
        self.is_exchanging, self._keeps = True, False
        for group in self._awaited:
            group.unshard()
            group.wait_for_unshard()

    def end(self) -> None:
        """Called at the end of a pass of context.backward."""
        self.is_exchanging = False
        held, self._held = self._held, []
        for group in (*self._awaited, *held):
            group.reshard()

    def forget(self) -> None:
        """Called before a step: graphs from before it would use old parameters."""
        self._awaited.clear()
        self._held.clear()

    def watch(self, group: Any) -> None:
        """Replaces the group's callbacks. group: torch's record of the parameters of one block."""
        if not all(hasattr(group, name) for name in _NEEDED):
            return
        begin, end, reshard = group.pre_backward, group.post_backward, group.reshard
        # Marks of the gradients that earlier passes have left here.
        left_marks: list[tuple[int, int]] = []

        def pre_backward(*arguments: Any) -> None:
            # Runs inside the pass, where gradients are recorded only with create_graph=True.
            self._keeps = torch.is_grad_enabled()
            begin(*arguments)

        def post_backward(*arguments: Any) -> None:
            reshards, reduces = group.reshard_after_backward, group.reduce_grads
            is_awaited = _is_awaited(group)
            if is_awaited and group not in self._awaited:
                self._awaited.append(group)
            if self._keeps and group not in self._held:
                self._held.append(group)
            group.reshard_after_backward = reshards and not is_awaited
            group.reduce_grads = reduces and (self.is_exchanging or _marks(group) != left_marks)
            try:
                end(*arguments)
                left_marks[:] = () if group.reduce_grads else _marks(group)
            finally:
                group.reshard_after_backward, group.reduce_grads = reshards, reduces

        def reshard_unheld() -> None:
            if group not in self._held:
                reshard()

        group.pre_backward, group.post_backward, group.reshard = pre_backward, post_backward, reshard_unheld


def _is_awaited(group: Any) -> bool:
    """Returns whether a forward pass has left the group whole whose backward pass is still to come."""
    return not group._reshard_after_forward and bool(group._post_forward_indices)


def _marks(group: Any) -> list[tuple[int, int]]:
    """Returns an id and a version for each gradient of a whole parameter. A pass that adds to a gradient changes its
    version."""
    whole_parameters = (getattr(fsdp_parameter, "_unsharded_param", None) for fsdp_parameter in group.fsdp_params)
    gradients = (parameter.grad for parameter in whole_parameters if parameter is not None)
    return [(id(gradient), gradient._version) for gradient in gradients if gradient is not None]
