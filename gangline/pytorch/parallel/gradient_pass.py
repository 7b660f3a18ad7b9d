"""Lets torch.autograd.grad go through a divided model, as penalties on gradients need it.

torch gives a block's whole parameters up as soon as a backward pass has left it. A pass with create_graph=True records
operations on them for the pass that follows, which would find them empty. torch also reduces what earlier batches have
aggregated at the end of any pass. Used by the strategies that divide models.
"""

from __future__ import annotations

from typing import Any

import torch

_NEEDED = ("pre_backward", "post_backward", "reshard_after_backward", "reduce_grads")


class GradientPasses:
    """Of all divided models of one trial: a pass goes through several of them. is_exchanging: whether the running pass
    is one of context.backward whose gradients go to the other ranks."""

    def __init__(self) -> None:
        self.is_exchanging = False
        self._keeps = False

    def watch(self, group: Any) -> None:
        """group: torch's record of the parameters of one block."""
        if not all(hasattr(group, name) for name in _NEEDED):
            return
        begin, end = group.pre_backward, group.post_backward
        # Of the gradients that the passes before have left here.
        known: list[tuple[int, int]] = []

        def pre_backward(*arguments: Any) -> None:
            # Called inside of the pass, where gradients are recorded only with create_graph.
            self._keeps = torch.is_grad_enabled()
            begin(*arguments)

        def post_backward(*arguments: Any) -> None:
            reshards, reduces = group.reshard_after_backward, group.reduce_grads
            group.reshard_after_backward = reshards and not self._keeps
            group.reduce_grads = reduces and (self.is_exchanging or _marks(group) != known)
            try:
                end(*arguments)
                known[:] = () if group.reduce_grads else _marks(group)
            finally:
                group.reshard_after_backward, group.reduce_grads = reshards, reduces

        group.pre_backward, group.post_backward = pre_backward, post_backward


def has_gradient(group: Any) -> bool:
    """Whether a pass has made gradients of whole parameters that are not reduced yet."""
    return bool(_marks(group))


def _marks(group: Any) -> list[tuple[int, int]]:
    """Of the gradients of whole parameters; a pass that adds to one changes its mark."""
    whole = (getattr(held, "_unsharded_param", None) for held in group.fsdp_params)
    gradients = (one.grad for one in whole if one is not None)
    return [(id(gradient), gradient._version) for gradient in gradients if gradient is not None]
