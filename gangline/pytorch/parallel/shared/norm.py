"""Computes the norm of gradients that are divided over ranks, and clips by it.

torch's own clip_grad_norm_ counts a rank's plain gradients alone and returns a DTensor for shards. A number read from
either may cover a part of the gradients only. Called by the strategies.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

# Added to the norm before the division, as torch's clip_grad_norm_ does it.
_EPSILON = 1e-6
# The norm of gradients of these types is computed in fp32.
_COARSE = (torch.float16, torch.bfloat16)
# One parameter of these types makes the norm an fp64 number.
_FINE = (torch.float64, torch.complex128)
# Kept, because a pipeline replaces it while a trial clips.
_TOTAL_NORM = nn.utils.get_total_norm
# By which a function that torch's norm calls recognises it.
NORM_CODE = inspect.unwrap(_TOTAL_NORM).__code__


class OwnNorm:
    """is_measured: whether `norm_here` calls torch's norm, and not the trial."""

    is_measured = False


def to_clip(parameters: Iterable[nn.Parameter] | nn.Parameter) -> list[nn.Parameter]:
    """Returns what was passed for clipping as a list. As in torch it may be a single parameter, which is no list of its
    rows."""
    return [parameters] if isinstance(parameters, nn.Parameter) else list(parameters)


def norm_here(gradients: Sequence[torch.Tensor], *arguments: Any, **options: Any) -> torch.Tensor:
    """Returns torch's norm of these gradients alone. arguments, options: as of torch.nn.utils.get_total_norm."""
    OwnNorm.is_measured = True
    try:
        return _TOTAL_NORM(gradients, *arguments, **options)
    finally:
        OwnNorm.is_measured = False


@torch.no_grad()
def clip_to_norm(parameters: Sequence[nn.Parameter], max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Scales the parameters' gradients so that their norm is at most max_norm. Returns the norm before that.

    Ranks that share parameters call it in step, each with its shards of the same parameters. norm_type may be infinity.
    """
    norm = gradient_norm(parameters, norm_type)
    scale = torch.clamp(max_norm / (norm + _EPSILON), max=1.0)
    for gradient in _numbers(parameters):
        # The scale keeps its own type: a small scale would be 0 in fp16.
        gradient.mul_(scale.to(gradient.device))
    return norm


def gradient_norm(parameters: Sequence[nn.Parameter], norm_type: float = 2.0) -> torch.Tensor:
    """Returns the norm over all shards of all gradients. A parameter without a gradient counts as zero."""
    by_groups: dict[tuple[dist.ProcessGroup, ...], list[nn.Parameter]] = {}
    for parameter in parameters:
        by_groups.setdefault(_groups_of(parameter), []).append(parameter)
    # The parameters' order is the same on all ranks, which matters because each entry may be a collective.
    norms = [_norm_over(groups, members, norm_type) for groups, members in by_groups.items()]
    if not norms:
        return torch.zeros(())
    dtype = torch.float64 if any(norm.dtype is torch.float64 for norm in norms) else torch.float32
    stacked = torch.stack([norm.to(norms[0].device, dtype) for norm in norms])
    joined: torch.Tensor = torch.linalg.vector_norm(stacked, norm_type)
    return joined


def _norm_over(
    groups: tuple[dist.ProcessGroup, ...], parameters: Sequence[nn.Parameter], norm_type: float
) -> torch.Tensor:
    # fp64 where a parameter has it, else fp32: the square of a norm in fp16 overflows at 256.
    dtype = torch.float64 if any(parameter.dtype in _FINE for parameter in parameters) else torch.float32
    norm = _norm_here(_numbers(parameters), norm_type, dtype).to(_local(parameters[0]).device)
    is_maximum = norm_type == float("inf")
    total = norm if is_maximum else norm**norm_type
    for group in groups:
        dist.all_reduce(total, op=dist.ReduceOp.MAX if is_maximum else dist.ReduceOp.SUM, group=group)
    return total if is_maximum else total ** (1.0 / norm_type)


def _norm_here(gradients: Sequence[torch.Tensor], norm_type: float, dtype: torch.dtype) -> torch.Tensor:
    """Returns the norm over the shards on this rank."""
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for gradient in gradients:
        by_type.setdefault(gradient.dtype, []).append(gradient)
    norms = [_norm_of_type(members, norm_type).to(dtype) for members in by_type.values()]
    if len(norms) == 1:
        return norms[0]
    stacked = torch.stack(norms) if norms else torch.zeros(1, dtype=dtype)
    joined: torch.Tensor = torch.linalg.vector_norm(stacked, norm_type)
    return joined


def _norm_of_type(gradients: list[torch.Tensor], norm_type: float) -> torch.Tensor:
    if gradients[0].dtype not in _COARSE:
        return norm_here(gradients, norm_type)
    norms = [torch.linalg.vector_norm(gradient, norm_type, dtype=torch.float32) for gradient in gradients]
    joined: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    return joined


def _numbers(parameters: Sequence[nn.Parameter]) -> list[torch.Tensor]:
    """Returns this rank's parts of the gradients. A sparse gradient gives its values, each row once."""
    gradients = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            gradients.append(parameter.grad._values())
        else:
            gradients.append(_local(parameter.grad))
    return gradients


def _groups_of(parameter: torch.Tensor) -> tuple[dist.ProcessGroup, ...]:
    """Returns the process groups over which a parameter is divided; none for a whole tensor."""
    if not isinstance(parameter, DTensor):
        return ()
    mesh = parameter.device_mesh
    return tuple(mesh.get_group(dim) for dim, placed in enumerate(parameter.placements) if placed.is_shard())


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
