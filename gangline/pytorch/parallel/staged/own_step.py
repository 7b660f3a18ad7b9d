"""Lets an optimizer step those of its parameters whose values this rank has, so that it sees none without a value or a
gradient. Used by the strategy `pipeline`.

The groups stay the user's own dictionaries, as schedulers and scalers know them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer


class OwnStep:
    """Hooks around the step of one optimizer. stepped: returns its parameters that this rank steps."""

    def __init__(self, optimizer: Optimizer, stepped: Callable[[Optimizer], list[nn.Parameter]]) -> None:
        self._stepped = stepped
        self._groups: list[dict[str, Any]] = []
        self._all_of_group: list[list[nn.Parameter]] = []
        optimizer.register_step_pre_hook(lambda stepping, *_: self._begin(stepping))
        optimizer.register_step_post_hook(lambda stepping, *_: self._end(stepping))

    def _begin(self, optimizer: Optimizer) -> None:
        own = {id(parameter) for parameter in self._stepped(optimizer)}
        self._groups = list(optimizer.param_groups)
        self._all_of_group = [group["params"] for group in self._groups]
        for group in self._groups:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) in own]
        # An optimizer need not support a group without parameters.
        optimizer.param_groups = [group for group in self._groups if group["params"]]

    def _end(self, optimizer: Optimizer) -> None:
        for group, parameters in zip(self._groups, self._all_of_group, strict=True):
            group["params"] = parameters
        optimizer.param_groups = self._groups
