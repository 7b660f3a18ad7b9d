"""ZeRO-1: like DDP, but each rank keeps the optimizer's state for its part of the parameters only.

A rank steps its own parameters and sends them to the others. torch's ZeroRedundancyOptimizer would replace the user's
optimizer by another object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from gangline.pytorch.parallel.shared.divided_step import DividedStep
from gangline.pytorch.parallel.shared.owner_values import OwnerValues
from gangline.pytorch.parallel.shared.reach import check_reach
from gangline.pytorch.parallel.shared.strategy import Holder
from gangline.pytorch.parallel.whole.ddp import DdpStrategy
from gangline.pytorch.parallel.whole.exchange import Exchange
from gangline.pytorch.profile.collective import CollectiveTimer
from gangline.pytorch.profile.traffic import TrafficMeter


class Zero1Strategy(DdpStrategy):
    name = "zero1"
    overwrites_copies: ClassVar[bool] = True

    def __init__(self, device: torch.device, options: dict[str, Any], exchange: Exchange) -> None:
        super().__init__(device, options, exchange)
        self._divided: dict[int, WholeParameterStep] = {}
        self._timer = CollectiveTimer(device)

    def prepare_optimizer(self, optimizer: Optimizer) -> Optimizer:
        super().prepare_optimizer(optimizer)
        self._divided[id(optimizer)] = WholeParameterStep(optimizer, self._timer, self._models.describe)
        return optimizer

    def traffic_meters(self) -> Sequence[TrafficMeter]:
        # Parameters are sent after the step, when the exchange of gradients is over.
        return [*super().traffic_meters(), self._timer]

    def stepped_parameters(self, optimizer: Optimizer) -> list[nn.Parameter]:
        return self._divided[id(optimizer)].own

    def holder_of(self, tensor: torch.Tensor, optimizer: Optimizer | None = None) -> Holder:
        return super().holder_of(tensor) if optimizer is None else Holder()


class WholeParameterStep(DividedStep):
    """Makes an optimizer's step update this rank's parameters only, and receives the others' afterwards.

    timer: measures the broadcasts of parameters. name_of: returns a parameter's name, for errors.
    """

    def __init__(self, optimizer: Optimizer, timer: CollectiveTimer, name_of: Callable[[torch.Tensor], str]) -> None:
        check_reach("zero1", optimizer)
        self._values = OwnerValues(name_of, timer.under_way)
        super().__init__(optimizer, "zero1")
        self._values.note(self._all())

    def lend(self, optimizer: Optimizer) -> None:
        self._values.before_step(self._all())
        for group in self.groups:
            group["params"] = [parameter for parameter in group["params"] if self.owner(parameter) == self.rank]

    def spread(self, optimizer: Optimizer) -> None:
        self._values.send(
            (owner, [parameter for parameter in parameters if parameter.requires_grad])
            for owner, parameters in enumerate(self.parameters_by_owner)
        )

    def _all(self) -> list[nn.Parameter]:
        """Returns the trained parameters of all ranks."""
        return [each for parameters in self.parameters_by_owner for each in parameters if each.requires_grad]
