"""Finds all gradients of a divided model, and lets zero_grad clear them.

A gradient is on the whole parameter from a backward pass of an aggregated batch until the step, and on the part of it
after the step's backward pass. torch's zero_grad sees one of the two. Used by the strategies that divide models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from gangline.pytorch.parallel.divided.shard_meter import parameter_groups
from gangline.pytorch.parallel.divided.whole_parameter import Whole, whole_of
from gangline.pytorch.parallel.shared.strategy import Places


def find_places(parameters: Iterable[torch.Tensor], groups: Iterable[Any]) -> list[Places]:
    """See Strategy.gradient_places. groups: torch's records of parameters that are gathered together."""
    record_by_id: dict[int, Any] = {}
    for fsdp_parameter in _all_of(groups):
        record_by_id[id(fsdp_parameter.sharded_param)] = fsdp_parameter
        record_by_id[id(getattr(fsdp_parameter, "_unsharded_param", None))] = fsdp_parameter
    record_by_id.pop(id(None), None)
    return [_places_of(parameter, record_by_id.get(id(parameter))) for parameter in parameters]


def _places_of(parameter: torch.Tensor, fsdp_parameter: Any) -> Places:
    if fsdp_parameter is None:
        whole = whole_of(parameter)
        return ((parameter, "grad"),) if whole is None else ((whole.part, "grad"), (whole.plain, "grad"))
    places = [(fsdp_parameter.sharded_param, "grad"), (fsdp_parameter, "unsharded_accumulated_grad")]
    whole_parameter: torch.Tensor | None = getattr(fsdp_parameter, "_unsharded_param", None)
    return places if whole_parameter is None else [*places, (whole_parameter, "grad")]


def clear_with_optimizer(optimizer: Any, groups: Callable[[], Sequence[Any]]) -> None:
    """Extends zero_grad of an optimizer. groups: returns torch's records of parameters that are gathered together."""
    if not isinstance(optimizer, Optimizer):
        # A copy of an object of a trial's own class would clear the original's gradients.
        return
    clear = optimizer.zero_grad

    def zero_grad(set_to_none: bool = True) -> None:
        clear(set_to_none)
        stepped = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        for fsdp_parameter in _all_of(groups()):
            if fsdp_parameter.sharded_param in stepped:
                _clear_whole(fsdp_parameter)
        for whole in _undivided(stepped):
            whole.plain.grad = None

    # A copy of the optimizer does not get it.
    optimizer.zero_grad = zero_grad  # type: ignore[method-assign]


def clear_with_modules(modules: Iterable[FSDPModule]) -> None:
    """Extends zero_grad of divided modules."""
    for module in modules:
        # torch made this class for divided modules of the user's class, so the user's own class stays unchanged. What
        # the trial's guard has put around it stays as well.
        if "zero_grad" not in vars(type(module)):
            type(module).zero_grad = _zero_grad  # type: ignore[attr-defined]


def _zero_grad(module: Any, set_to_none: bool = True) -> None:
    user_class: type[nn.Module] = type(module).__mro__[2]
    user_class.zero_grad(module, set_to_none)
    divided = [part for part in module.modules() if isinstance(part, FSDPModule)]
    for fsdp_parameter in _all_of(group for part in divided for group in parameter_groups(part)):
        _clear_whole(fsdp_parameter)
        fsdp_parameter.sharded_param.grad = None
    for whole in _undivided(module.parameters()):
        whole.plain.grad = whole.part.grad = None


def _undivided(parameters: Iterable[nn.Parameter]) -> Iterator[Whole]:
    wholes = (whole_of(parameter) for parameter in parameters)
    return (whole for whole in wholes if whole is not None)


def _all_of(groups: Iterable[Any]) -> Iterable[Any]:
    return (fsdp_parameter for group in groups for fsdp_parameter in group.fsdp_params)


def _clear_whole(fsdp_parameter: Any) -> None:
    whole_parameter: torch.Tensor | None = getattr(fsdp_parameter, "_unsharded_param", None)
    fsdp_parameter.unsharded_accumulated_grad = None
    if whole_parameter is not None:
        whole_parameter.grad = None
