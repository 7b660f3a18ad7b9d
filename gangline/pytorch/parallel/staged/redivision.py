"""Divides a model that is cut already by the measured time of its units, before its first step.

Values, buffers and states of optimizers go from their old to their new ranks inside each replica. Called by the
strategy `pipeline` with `split: time`, on all ranks in step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from gangline.pytorch.parallel.staged.group import Replicas
from gangline.pytorch.parallel.staged.holding import Holding
from gangline.pytorch.parallel.staged.layout import decode, describe, encode, tensors_of

_STATE = "state"


def agree_on_times(times: Mapping[int, float], count: int, replicas: Replicas) -> list[float]:
    """Returns the seconds of each of `count` units, as a mean over the replicas, the same on all ranks. times: of this
    rank's units."""
    total = torch.zeros(count, dtype=torch.float64)
    for place, seconds in times.items():
        total[place] = seconds
    dist.all_reduce(total)
    seconds_by_unit: list[float] = (total / replicas.count).tolist()
    return seconds_by_unit


def move_values(
    model: nn.Module, old: Holding, new: Holding, replicas: Replicas, optimizers: Iterable[Optimizer]
) -> None:
    """Moves everything to the ranks that hold it from now on."""
    for name, buffer in model.named_buffers():
        if old.holders_of_name(name) != new.holders_of_name(name):
            replicas.share([buffer], old.holders_of_name(name)[0])
    for parameter in old.parameters():
        before, after = old.holders(parameter), new.holders(parameter)
        if before == after:
            continue
        value = torch.empty_like(parameter, device=replicas.device) if parameter.is_meta else parameter.detach()
        replicas.share([value], before[0])
        states = [_share_state(parameter, optimizer, before[0], replicas) for optimizer in optimizers]
        if replicas.place not in after:
            for optimizer in optimizers:
                optimizer.state.pop(parameter, None)
            if not parameter.is_meta:
                new.drop(parameter)
        elif replicas.place not in before:
            new.take(parameter, value)
            for optimizer, state in zip(optimizers, states, strict=True):
                if state:
                    optimizer.state[parameter] = state


def _share_state(parameter: nn.Parameter, optimizer: Optimizer, place: int, replicas: Replicas) -> Any:
    """Returns an optimizer's state of a parameter at a place, on all ranks of the replica."""
    state = dict(optimizer.state.get(parameter, {}))
    is_source = replicas.place == place
    content = encode({_STATE: describe(state, "the optimizer's state")}) if is_source else None
    described = decode(replicas.share_bytes(content, place))[_STATE]
    tensors = [tensor.contiguous() for tensor in tensors_of(state)] if is_source else []
    # A count of steps stays on the CPU, where torch's optimizers keep it; other states are with the parameter.
    tensors = tensors or [
        torch.zeros(shape.shape, dtype=shape.dtype, device=replicas.device if shape.shape else "cpu")
        for shape in described.shapes
    ]
    for tensor in tensors:
        replicas.share([tensor], place)
    return described.fill(tensors)
