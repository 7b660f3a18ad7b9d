"""ZeRO-1: as DDP, but each rank keeps the optimizer's state of its part of the parameters only.

A rank steps its own parameters and sends them to the others. The optimizer stays the user's own object with all of its
groups, so that schedulers and scalers made for it go on working; torch's ZeroRedundancyOptimizer would put another one
in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from gangline.errors import invalid
from gangline.pytorch.parallel.broadcast import broadcast_tensors
from gangline.pytorch.parallel.ddp import DdpStrategy
from gangline.pytorch.parallel.exchange import Exchange
from gangline.pytorch.parallel.partition import divide
from gangline.pytorch.parallel.strategy import Holder
from gangline.pytorch.profile.collective import CollectiveTimer
from gangline.pytorch.profile.traffic import TrafficMeter


class Zero1Strategy(DdpStrategy):
    name = "zero1"

    def __init__(self, device: torch.device, options: dict[str, Any], exchange: Exchange) -> None:
        super().__init__(device, options, exchange)
        self._divided: dict[int, DividedStep] = {}
        self._timer = CollectiveTimer(device)

    def prepare_optimizer(self, optimizer: Optimizer) -> Optimizer:
        super().prepare_optimizer(optimizer)
        self._divided[id(optimizer)] = DividedStep(optimizer, self._timer)
        return optimizer

    def traffic_meters(self) -> Sequence[TrafficMeter]:
        # Parameters travel after the step, when the exchange of gradients is over.
        return [*super().traffic_meters(), self._timer]

    def stepped_parameters(self, optimizer: Optimizer) -> list[nn.Parameter]:
        return self._divided[id(optimizer)].own

    def holder_of(self, tensor: torch.Tensor, is_optimizer_state: bool) -> Holder:
        return Holder() if is_optimizer_state else super().holder_of(tensor, is_optimizer_state)


class DividedStep:
    """Has an optimizer's step update this rank's parameters only, and fetches the others' afterwards.

    timer: of what is fetched. own: this rank's parameters.
    """

    def __init__(self, optimizer: Optimizer, timer: CollectiveTimer) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise invalid(
                "parallelism.optimizer",
                "zero1 divides an optimizer's state by parameter, which LBFGS does not keep so; use ddp",
            )
        self._timer = timer
        self._rank = dist.get_rank()
        self._owner_by_id: dict[int, int] = {}
        self._parameters_by_owner: list[list[nn.Parameter]] = [[] for _ in range(dist.get_world_size())]
        self.own = self._parameters_by_owner[self._rank]
        self._assign(optimizer)
        self._groups: list[dict[str, Any]] = []
        self._all_of_group: list[list[nn.Parameter]] = []
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def _assign(self, optimizer: Optimizer) -> None:
        """Gives every parameter that has none an owner; a group may be added while training runs."""
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        free = [parameter for parameter in held if id(parameter) not in self._owner_by_id]
        for parameter, owner in zip(free, divide([one.numel() for one in free], dist.get_world_size()), strict=True):
            self._owner_by_id[id(parameter)] = owner
            self._parameters_by_owner[owner].append(parameter)

    def _before(self, optimizer: Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        if any(callable(value) for value in (*arguments[1:], *options.values())):
            raise invalid(
                "parallelism.optimizer", "zero1 cannot step with a closure, which would see a part of the parameters"
            )
        self._assign(optimizer)
        self._groups = list(optimizer.param_groups)
        self._all_of_group = [group["params"] for group in self._groups]
        for group in self._groups:
            group["params"] = [one for one in group["params"] if self._owner_by_id[id(one)] == self._rank]
        # Optimizers need not expect a group without parameters.
        optimizer.param_groups = [group for group in self._groups if group["params"]]

    def _after(self, optimizer: Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        for group, parameters in zip(self._groups, self._all_of_group, strict=True):
            group["params"] = parameters
        optimizer.param_groups = self._groups
        for owner, parameters in enumerate(self._parameters_by_owner):
            trained = (one for one in parameters if one.requires_grad)
            broadcast_tensors(trained, source=owner, around=self._timer.under_way)
