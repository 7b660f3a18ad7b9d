"""Divides an optimizer's parameters over ranks: each rank steps its own ones and keeps the optimizer's state of them.

The optimizer stays the user's own object with all of its groups, so that schedulers and scalers made for it keep
working. Used by the strategies, which implement `lend` and `spread` differently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from gangline.errors import invalid
from gangline.pytorch.parallel.shared.even_division import divide


class DividedStep(ABC):
    """Divides the step of one optimizer. groups: the optimizer's groups while it steps. own: this rank's parameters."""

    def __init__(self, optimizer: Optimizer, strategy: str) -> None:
        self.rank = dist.get_rank()
        self.groups: list[dict[str, Any]] = []
        self._strategy = strategy
        self._owner_by_id: dict[int, int] = {}
        self.parameters_by_owner: list[list[nn.Parameter]] = [[] for _ in range(dist.get_world_size())]
        self.own = self.parameters_by_owner[self.rank]
        self._assign(optimizer)
        self._all_of_group: list[list[nn.Parameter]] = []
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def owner(self, parameter: nn.Parameter) -> int:
        """Returns the rank that steps a parameter."""
        return self._owner_by_id[id(parameter)]

    @abstractmethod
    def lend(self, optimizer: Optimizer) -> None:
        """Puts the parameters that this rank steps into `groups`."""

    @abstractmethod
    def spread(self, optimizer: Optimizer) -> None:
        """Gives all ranks the new values, once the optimizer has its own parameters again."""

    def _assign(self, optimizer: Optimizer) -> None:
        """Gives every parameter without an owner one; a trial may add a group while training runs."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        free = [parameter for parameter in parameters if id(parameter) not in self._owner_by_id]
        for parameter, owner in zip(
            free, divide([parameter.numel() for parameter in free], dist.get_world_size()), strict=True
        ):
            self._owner_by_id[id(parameter)] = owner
            self.parameters_by_owner[owner].append(parameter)

    def _before(self, optimizer: Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        if any(callable(value) for value in (*arguments[1:], *options.values())):
            raise invalid("parallelism.optimizer", closure_conflict(self._strategy, optimizer))
        self._assign(optimizer)
        self.groups = list(optimizer.param_groups)
        self._all_of_group = [group["params"] for group in self.groups]
        self.lend(optimizer)
        # An optimizer need not support a group without parameters.
        optimizer.param_groups = [group for group in self.groups if group["params"]]

    def _after(self, optimizer: Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        for group, parameters in zip(self.groups, self._all_of_group, strict=True):
            group["params"] = parameters
        optimizer.param_groups = self.groups
        self.spread(optimizer)


def closure_conflict(strategy: str, optimizer: Optimizer) -> str:
    """Returns why a divided step takes no closure."""
    return (
        f"{strategy} cannot step {type(optimizer).__name__} with a closure, which would see a part of the parameters; "
        "call step_optimizer without a closure, or use ddp"
    )
