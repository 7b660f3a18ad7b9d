"""Watches the whole parameters of a divided model, which exist from their gathering until they are divided again.

A trial may change them in place, which would be lost, because the optimizer steps the parts. It may replace them for
one call, as torch.func.functional_call does, and torch would use the gathered ones. Both are refused. Hooks of a part
run with the gradient of its whole parameter, as they do in one process. Used by the strategies that divide models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._functorch import TransformType

from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel.divided.half_parameter import gathered_of, was_changed

# Internal names of torch's parameter groups. A release without one of them is left as it is.
_NEEDED = ("_to_unsharded", "_to_sharded")
# Number of times that a group's values are compared. Only a change through `tensor.data` needs the comparison, which
# makes a GPU's host wait.
_MOST_COMPARED = 20


class WholeUse:
    """Watches the groups of one trial. describe: returns the name of a divided parameter."""

    def __init__(self, strategy: str, describe: Callable[[torch.Tensor], str]) -> None:
        self._strategy = strategy
        self._describe = describe

    def watch(self, group: Any) -> None:
        """Watches a group from now on. group: torch's record of the parameters of one block."""
        if not all(hasattr(group, name) for name in _NEEDED):
            return
        gather, divide = group._to_unsharded, group._to_sharded
        versions: list[int] = []
        compared = 0

        def to_unsharded() -> None:
            if group.is_sharded:
                self._check_own(group)
            gather()
            for fsdp_parameter in group.fsdp_params:
                _share_hooks(fsdp_parameter)
            versions[:] = [fsdp_parameter._unsharded_param._version for fsdp_parameter in group.fsdp_params]

        def to_sharded() -> None:
            nonlocal compared
            changed = None
            if group.is_unsharded and versions:
                changed = _find_changed(group, versions, compares=compared < _MOST_COMPARED)
                compared += 1
            divide()
            if changed is not None:
                raise self._changed(changed.sharded_param)

        group._to_unsharded, group._to_sharded = to_unsharded, to_sharded

    def _check_own(self, group: Any) -> None:
        for fsdp_parameter in group.fsdp_params:
            place = fsdp_parameter._module_info
            present = place.module._parameters.get(place.param_name)
            if present is not fsdp_parameter.sharded_param:
                name = fsdp_parameter._param_fqn or place.param_name
                raise invalid(
                    "parallelism.parameter_replaced",
                    f"{name} was replaced for a call of the model, as torch.func.functional_call does, and "
                    f"{self._strategy} would use the model's own values; use ddp or zero1",
                )

    def _changed(self, parameter: torch.Tensor) -> GanglineError:
        return invalid(
            "parallelism.whole_changed",
            f"{self._describe(parameter)} was changed in place in a forward pass or before its backward pass, and "
            f"{self._strategy} would lose the change, as the optimizer steps parts of it; change it under "
            "torch.no_grad() after the optimizer's step, use it through a function that has no effect on it, as "
            "weight.clamp(min=0), or use ddp or zero1",
        )


def check_transforms(strategy: str) -> None:
    """Raises GanglineError `parallelism.transform` in a derivative of torch.func, which would use whole parameters that
    are freed. Called before a forward pass."""
    if not torch._C._are_functorch_transforms_active():
        return
    keys = [level.key() for level in torch._C._functorch.get_interpreter_stack() or ()]
    if TransformType.Grad in keys or TransformType.Jvp in keys:
        raise invalid(
            "parallelism.transform",
            f"a wrapped model was called in a derivative of torch.func, as torch.func.grad, which {strategy} does not "
            "gather parameters for; use torch.autograd.grad with create_graph=True",
        )


def _share_hooks(fsdp_parameter: Any) -> None:
    hooks = fsdp_parameter.sharded_param._backward_hooks
    if hooks is not None and fsdp_parameter._unsharded_param._backward_hooks is not hooks:
        fsdp_parameter._unsharded_param._backward_hooks = hooks


def _find_changed(group: Any, versions: list[int], compares: bool) -> Any:
    """Returns torch's record of the first changed parameter; None where there is none."""
    for fsdp_parameter, version in zip(group.fsdp_params, versions, strict=True):
        whole = fsdp_parameter._unsharded_param
        if whole._version != version or was_changed(whole) or (compares and _differs(fsdp_parameter)):
            return fsdp_parameter
    return None


def _differs(fsdp_parameter: Any) -> bool:
    """Returns whether this rank's part of the whole parameter is another than the part itself."""
    (gathered,) = fsdp_parameter.all_gather_outputs
    if gathered_of(fsdp_parameter._unsharded_param).data_ptr() != gathered.data_ptr():
        return True
    part = fsdp_parameter._sharded_param_data.to(gathered.dtype)
    own = gathered.view(-1, part.numel())[fsdp_parameter.mesh_info.shard_mesh_rank] if part.numel() else part
    # Compares bits: a number that is none differs from itself.
    return not torch.equal(own.view(torch.uint8), part.view(torch.uint8))
