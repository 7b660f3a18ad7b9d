"""Averages gradients that no exchange has sent because a trial made them with torch.autograd.grad, or by hand.

Called by the strategies that are built on DistributedDataParallel, whose gradients are views of its buckets. Averaging
a gradient that is the same on all ranks changes nothing, so a trial may have averaged it already.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from gangline.pytorch.parallel.shared.broadcast import average_tensors


def find_strays(optimizer: Optimizer) -> set[int]:
    """Returns the ids of an optimizer's parameters that have a stray gradient."""
    # Runs at every step for every parameter, so it calls nothing for a gradient that was exchanged. A sparse one is
    # never a view, and DistributedDataParallel has exchanged it. Any other gradient that was exchanged is a view of a
    # bucket, which has one dimension.
    stray_ids = set()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            base = gradient._base
            if (base is None or base.dim() != 1) and gradient.layout is torch.strided:
                stray_ids.add(id(parameter))
    return stray_ids


def average_strays(optimizer: Optimizer, stray_ids: set[int], besides: Collection[int] = ()) -> None:
    """Averages these stray gradients of an optimizer's parameters. All ranks call it in step, each with at least one. A
    parameter without a gradient on this rank counts as zero where others have one. besides: ids of parameters that are
    exchanged in another way."""
    if stray_ids.difference(besides):
        stepped = (parameter for group in optimizer.param_groups for parameter in group["params"])
        parameters = [parameter for parameter in stepped if id(parameter) not in besides]
        average_marked(parameters, [id(parameter) in stray_ids for parameter in parameters])


def average_all(parameters: Sequence[torch.Tensor]) -> None:
    """Averages all gradients that any rank has, as average_strays does. Averaging the same gradients again changes
    nothing."""
    average_marked(parameters, [parameter.grad is not None for parameter in parameters])


@torch.no_grad()
def average_marked(parameters: Sequence[torch.Tensor], marks: Sequence[bool]) -> None:
    wanted = torch.tensor(marks, dtype=torch.int32, device=parameters[0].device)
    dist.all_reduce(wanted, op=dist.ReduceOp.MAX)
    chosen = [parameter for parameter, is_wanted in zip(parameters, wanted.tolist(), strict=True) if is_wanted]
    for parameter in chosen:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad for parameter in chosen if parameter.grad is not None]
    average_tensors(gradient for gradient in gradients if not gradient.is_sparse)
    for gradient in gradients:
        if gradient.is_sparse:
            gradient.div_(dist.get_world_size())
            dist.all_reduce(gradient)
