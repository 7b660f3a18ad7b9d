"""Steps optimizers whose update needs whole tensors, for strategies that divide tensors over ranks.

Each parameter has one rank that steps it. That rank gathers the whole parameter and gradient before the step and sends
the new values to the others after it. It alone keeps the optimizer's state of that parameter. During the step a rank
keeps its share of whole parameters and gradients beside the shards.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from gangline.pytorch.parallel.shared.broadcast import broadcast_tensors
from gangline.pytorch.parallel.shared.divided_step import DividedStep


class WholeStep(DividedStep):
    """Has an optimizer step this rank's parameters as whole tensors, and divides all of them again afterwards."""

    def __init__(self, optimizer: Optimizer, strategy: str) -> None:
        self._whole_by_id: dict[int, nn.Parameter] = {}
        self._stepped: list[nn.Parameter] = []
        super().__init__(optimizer, strategy)

    def lend(self, optimizer: Optimizer) -> None:
        """Gives the optimizer the whole tensor for each own parameter that has a gradient. All ranks take part in the
        gathering."""
        self._stepped = [
            parameter for group in self.groups for parameter in group["params"] if parameter.grad is not None
        ]
        for parameter in self._stepped:
            value, gradient = _whole(parameter.detach()), _whole(parameter.grad)
            if self.owner(parameter) != self.rank:
                continue
            whole_parameter = nn.Parameter(value, requires_grad=parameter.requires_grad)
            whole_parameter.grad = gradient
            vars(whole_parameter).update(vars(parameter))
            self._whole_by_id[id(parameter)] = whole_parameter
            _move_state(optimizer, parameter, whole_parameter)
        for group in self.groups:
            whole_parameters = (self._whole_by_id.get(id(parameter)) for parameter in group["params"])
            group["params"] = [whole_parameter for whole_parameter in whole_parameters if whole_parameter is not None]

    @torch.no_grad()
    def spread(self, optimizer: Optimizer) -> None:
        for parameter in self._stepped:
            if id(parameter) in self._whole_by_id:
                _move_state(optimizer, self._whole_by_id[id(parameter)], parameter)
        for owner in range(dist.get_world_size()):
            pairs = [
                (parameter, self._room_for(parameter)) for parameter in self._stepped if self.owner(parameter) == owner
            ]
            broadcast_tensors((whole_tensor for _, whole_tensor in pairs), source=owner)
            for parameter, whole_tensor in pairs:
                _take_part(parameter, whole_tensor)
        self._whole_by_id, self._stepped = {}, []

    def _room_for(self, parameter: nn.Parameter) -> torch.Tensor:
        whole_parameter = self._whole_by_id.get(id(parameter))
        if whole_parameter is not None:
            return whole_parameter.detach()
        return torch.empty(parameter.shape, dtype=parameter.dtype, device=_local(parameter).device)


def _move_state(optimizer: Optimizer, source: nn.Parameter, target: nn.Parameter) -> None:
    if source in optimizer.state:
        optimizer.state[target] = optimizer.state.pop(source)


def _take_part(parameter: nn.Parameter, whole_tensor: torch.Tensor) -> None:
    part = whole_tensor
    if isinstance(parameter, DTensor):
        part = distribute_tensor(
            whole_tensor, parameter.device_mesh, parameter.placements, src_data_rank=None
        ).to_local()
    _local(parameter).copy_(part)


def _whole(tensor: Any) -> torch.Tensor:
    whole_tensor: torch.Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole_tensor


def _local(tensor: torch.Tensor) -> torch.Tensor:
    detached = tensor.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached
