"""Prepares batch normalisation for several ranks: runs SyncBatchNorm on the CPU, and warns of layers that see one
slot's records.

torch runs SyncBatchNorm on GPUs only. On the CPU the strategies of several ranks give such layers the class below. It
computes the same statistics with operations that autograd knows. Called when a model is wrapped.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from gangline.errors import invalid

_log = logging.getLogger("gangline")


def prepare_batch_norm(model: nn.Module) -> None:
    """Lets SyncBatchNorm layers run on the CPU, and warns once of layers whose results depend on the number of slots.
    Raises GanglineError `parallelism.batch_norm`."""
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    for layer in layers:
        if isinstance(layer, nn.SyncBatchNorm) and _is_on_cpu(layer):
            _run_on_cpu(layer)
    local = [module for module in layers if not isinstance(module, nn.SyncBatchNorm | CpuSyncBatchNorm)]
    converts = ", or torch.nn.SyncBatchNorm.convert_sync_batchnorm before context.wrap_model"
    _warn(
        model,
        local,
        f"one slot's part of the batch, so its losses differ from those of one slot; use GroupNorm{converts}",
    )


def warn_of_microbatches(model: nn.Module, *, microbatches: int | None, replicas: int) -> None:
    """Warns once of layers that a pipeline lets normalise over a part of the batch. microbatches: as configured, None
    for a number that is chosen later. replicas: their number."""
    if microbatches == 1 and replicas == 1:
        return
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    part = "one replica's part of the batch" if microbatches == 1 else "one microbatch"
    _warn(model, layers, f"{part}, so its losses differ from those of one slot; use GroupNorm")


def _warn(model: nn.Module, layers: Sequence[nn.Module], text: str) -> None:
    if layers and dist.get_rank() == 0:
        name, kind = type(model).__name__, type(layers[0]).__name__
        _log.warning("%s has %d %s layers, which normalise over %s", name, len(layers), kind, text)


class CpuSyncBatchNorm(_BatchNorm):
    """Implements SyncBatchNorm for records in the memory of the host. It is no subclass of torch's, because
    DistributedDataParallel refuses those on the CPU."""

    process_group: dist.ProcessGroup | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")
        if not self.training:
            # Evaluation uses running statistics or this rank's own, and shares nothing, as in torch's layer.
            return super().forward(input)
        is_narrow = input.dtype in (torch.float16, torch.bfloat16)
        values = input.float() if is_narrow else input
        reduced_dimensions = [dimension for dimension in range(values.dim()) if dimension != 1]
        shape = [1, -1, *(1 for _ in reduced_dimensions[1:])]
        own_count = values.new_tensor([values.numel() // max(1, values.shape[1])])
        # Two sums, one after the other: a variance computed from a sum of squares alone loses digits.
        total = self._total(torch.cat([values.sum(reduced_dimensions), own_count]))
        count, mean = total[-1].detach(), total[:-1] / total[-1].detach()
        centred = values - mean.view(shape)
        variance = self._total(centred.square().sum(reduced_dimensions)) / count
        if self.track_running_stats:
            self._track(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        normalised = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is not None:
            normalised = normalised * self.weight.view(shape)
        if self.bias is not None:
            normalised = normalised + self.bias.view(shape)
        return normalised.to(input.dtype)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        """Does nothing, as forward has checked the dimensions."""

    def _total(self, own: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = _Total.apply(own, self.process_group)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return total

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.mul_(1 - momentum).add_(mean.to(self.running_mean.dtype), alpha=momentum)
        self.running_var.mul_(1 - momentum).add_(variance.to(self.running_var.dtype), alpha=momentum)


class _Total(torch.autograd.Function):
    """Sums a tensor over the ranks. A loss of any rank depends on each rank's part, so gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        ctx.group = group
        total = own.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _Total.apply(gradients[0], ctx.group), None  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _is_on_cpu(layer: nn.Module) -> bool:
    kinds = {tensor.device.type for tensor in (*layer.parameters(), *layer.buffers())}
    return kinds == {"cpu"} or (not kinds and not torch.cuda.is_available())


def _run_on_cpu(layer: nn.SyncBatchNorm) -> None:
    if type(layer) is not nn.SyncBatchNorm:
        raise invalid(
            "parallelism.batch_norm",
            f"{type(layer).__name__} derives from torch.nn.SyncBatchNorm, which torch runs on GPUs only; use "
            "torch.nn.SyncBatchNorm itself, or GroupNorm",
        )
    layer.__class__ = CpuSyncBatchNorm  # type: ignore[assignment]  # both have the same attributes
