"""Looks into the modules that fully_shard has divided, and mends what torch leaves undone in them.

Owns the use of torch's private state of such modules for the strategies that divide: their groups of parameters, the
flags of whole parameters, left-over gradients, and the record of passes. Keeps no state itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from gangline.pytorch.parallel.divided.divided_copy import OwnHook
from gangline.pytorch.parallel.divided.shard_meter import parameter_groups


def sharded_modules(root: FSDPModule) -> list[FSDPModule]:
    """Returns the modules of a divided model that are gathered by themselves, the model itself among them."""
    assert isinstance(root, nn.Module)
    return [module for module in root.modules() if isinstance(module, FSDPModule)]


def groups_of(root: FSDPModule) -> list[Any]:
    """Returns torch's groups of parameters that are gathered together."""
    return [group for module in sharded_modules(root) for group in parameter_groups(module)]


def forms_of(group: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Returns the part of each parameter of a block beside each form in which the model may have it: the part itself,
    and the whole parameter while the block is gathered."""
    for fsdp_parameter in group.fsdp_params:
        part = fsdp_parameter.sharded_param
        yield part, part
        if group.is_unsharded:
            yield fsdp_parameter.unsharded_param, part


def begin_with_root(root: FSDPModule) -> None:
    """Makes torch take the wrapped model for the root, also where a trial calls a block of it first. torch takes the
    first module that is called, and refuses the model afterwards."""
    state: Any = root._get_fsdp_state()
    handles: list[Any] = []

    def initialise(*_: Any) -> None:
        state._lazy_init()
        while handles:
            handles.pop().remove()

    handles.extend(
        module.register_forward_pre_hook(OwnHook(initialise), prepend=True)  # type: ignore[attr-defined]  # each is a module
        for module in sharded_modules(root)
        if module is not root
    )


def reduce_left_over(group: Any) -> None:
    """Reduces the gradients that a backward pass has left in a block. torch reduces a block that is in several
    reentrant checkpoints after the first backward pass only. It does not reduce a part that was called by itself at
    all."""
    whole_parameters = (getattr(fsdp_parameter, "_unsharded_param", None) for fsdp_parameter in group.fsdp_params)
    if group.reduce_grads and any(
        parameter is not None and parameter.grad is not None for parameter in whole_parameters
    ):
        group.post_backward()
        group.finalize_backward()
        group._training_state = type(group._training_state).IDLE


def take_over_flags(root: FSDPModule) -> None:
    """Copies requires_grad from whole parameters to their parts. Whole parameters exist after a pass without a backward
    pass, and the user may have frozen or unfrozen them. torch would set the flags of the parts on the whole parameters
    again."""
    for module in sharded_modules(root):
        for group in parameter_groups(module):
            if group.is_unsharded:
                for fsdp_parameter in group.fsdp_params:
                    if fsdp_parameter.sharded_param.requires_grad != fsdp_parameter.unsharded_param.requires_grad:
                        fsdp_parameter.sharded_param.requires_grad_(fsdp_parameter.unsharded_param.requires_grad)


def forget_passes(module: FSDPModule) -> None:
    """Clears torch's record of passes that no backward pass followed. torch gathers blocks ahead by this record, and
    ranks with different records would wait for one another in the next backward. torch's own reset would also drop
    gradients."""
    state: Any = module._get_fsdp_state()
    # The attribute is absent until a first pass.
    getattr(state._comm_ctx, "post_forward_order", []).clear()
    for group in parameter_groups(module):
        group._post_forward_indices.clear()
