"""Averages gradients that no exchange has seen: a trial made them with torch.autograd.grad, or by hand.

Called before each step by the strategies that are built on DistributedDataParallel, whose gradients are views of its
buckets. Averaging a gradient that is the same on all ranks changes nothing, so a trial may have averaged it already.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from gangline.pytorch.parallel.broadcast import average_tensors


@torch.no_grad()
def average_strays(optimizer: Optimizer) -> None:
    """All ranks call it in step. A parameter without a gradient on this rank counts as zero where others have one."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    marks = [_is_stray(parameter.grad) for parameter in parameters]
    if not any(marks):
        return
    device = parameters[0].device
    wanted = torch.tensor(marks, dtype=torch.int32, device=device)
    dist.all_reduce(wanted, op=dist.ReduceOp.MAX)
    chosen = [parameter for parameter, is_wanted in zip(parameters, wanted.tolist(), strict=True) if is_wanted]
    for parameter in chosen:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    average_tensors([parameter.grad for parameter in chosen])


def _is_stray(gradient: torch.Tensor | None) -> bool:
    # A sparse gradient is never a view, and DistributedDataParallel has exchanged it. A bucket has one dimension.
    if gradient is None or gradient.layout is not torch.strided:
        return False
    return gradient._base is None or gradient._base.dim() != 1
