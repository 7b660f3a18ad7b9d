"""Keeps gathered parameters for a second pass through a divided model, as penalties on gradients need it.

torch gives a block's whole parameters up as soon as a backward pass has left it. A pass with create_graph=True records
operations on them for the pass that follows, which would find them empty. Used by the strategies that divide models.
"""

from __future__ import annotations

from typing import Any

import torch

_NEEDED = ("pre_backward", "post_backward", "reshard_after_backward")


class KeptParameters:
    """Of all divided models of one trial: a pass goes through several of them."""

    def __init__(self) -> None:
        self._keeps = False

    def watch(self, group: Any) -> None:
        """group: torch's record of the parameters of one block."""
        if not all(hasattr(group, name) for name in _NEEDED):
            return
        begin, end = group.pre_backward, group.post_backward

        def pre_backward(*arguments: Any) -> None:
            # Called inside of the pass, where gradients are recorded only with create_graph.
            self._keeps = torch.is_grad_enabled()
            begin(*arguments)

        def post_backward(*arguments: Any) -> None:
            usual = group.reshard_after_backward
            group.reshard_after_backward = usual and not self._keeps
            try:
                end(*arguments)
            finally:
                group.reshard_after_backward = usual

        group.pre_backward, group.post_backward = pre_backward, post_backward
