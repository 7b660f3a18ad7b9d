"""Joins the gradients of a pipeline's ranks before a step: sums those of shared parameters over the ranks that hold
them, and averages all over the replicas. Lets torch's clipping ask for their norm over all parts."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad

from gangline.errors import invalid
from gangline.pytorch.parallel.shared.broadcast import average_tensors, sum_tensors
from gangline.pytorch.parallel.shared.norm import NORM_CODE, OwnNorm

# By which a function that torch's clipping calls recognises it.
_CLIP_CODE = inspect.unwrap(nn.utils.clip_grad_norm_).__code__


@torch.no_grad()
def join_gradients(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup, is_mean: bool) -> None:
    """Sums or averages gradients over a group, whose ranks call it in step with the same parameters. A parameter
    without a gradient on this rank counts as zero where another rank has one."""
    chosen = make_gradients_alike(parameters, group)
    gradients = [parameter.grad for parameter in chosen if parameter.grad is not None]
    (average_tensors if is_mean else sum_tensors)(gradients, group)


@torch.no_grad()
def make_gradients_alike(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> list[nn.Parameter]:
    """Returns the parameters that have a gradient on some rank of the group, and gives them one on all of its ranks.
    These call it in step with the same parameters."""
    if not parameters:
        return []
    marks = torch.tensor(
        [parameter.grad is not None for parameter in parameters], dtype=torch.int32, device=parameters[0].device
    )
    dist.all_reduce(marks, op=dist.ReduceOp.MAX, group=group)
    chosen = [parameter for parameter, is_wanted in zip(parameters, marks.tolist(), strict=True) if is_wanted]
    for parameter in chosen:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return chosen


@contextmanager
def torch_clipping_over(measure: Callable[..., torch.Tensor]) -> Iterator[None]:
    """Lets torch's clip_grad_norm_ and get_total_norm call `measure` for the time of the block. Otherwise each rank
    would clip by the norm of its own part. torch's clip_grad_value_ changes nothing on a rank without gradients, where
    torch itself would fail.

    measure: gets the parameters that clip_grad_norm_ was called with, None where get_total_norm was called, and the
    arguments of get_total_norm."""
    torch_clips: Any = clip_grad
    original, group_tensors = torch_clips._get_total_norm, torch_clips._group_tensors_by_device_and_dtype

    def total_norm(*arguments: Any, **options: Any) -> torch.Tensor:
        return measure(_parameters_in(sys._getframe(1)), *arguments, **options)

    def group_any(lists: Any, *arguments: Any, **options: Any) -> Any:
        # The name that a trial has imported before is torch's own function.
        if not OwnNorm.is_measured and sys._getframe(1).f_code is NORM_CODE:
            raise invalid(
                "pytorch.partial_gradients",
                "clip_grads measures the norm of one stage's gradients; call torch.nn.utils.get_total_norm by its full "
                "name, or use context.clip_grad_norm",
            )
        return group_tensors(lists, *arguments, **options) if lists[0] else {}

    torch_clips._get_total_norm, torch_clips._group_tensors_by_device_and_dtype = total_norm, group_any
    public = nn.utils.get_total_norm
    nn.utils.get_total_norm = total_norm
    try:
        yield
    finally:
        torch_clips._get_total_norm, torch_clips._group_tensors_by_device_and_dtype = original, group_tensors
        nn.utils.get_total_norm = public


def _parameters_in(caller: FrameType) -> list[torch.Tensor] | None:
    """Returns the parameters of torch's clip_grad_norm_, which passes on only those gradients that exist here."""
    parameters = caller.f_locals.get("parameters") if caller.f_code is _CLIP_CODE else None
    return parameters if isinstance(parameters, list) else None
