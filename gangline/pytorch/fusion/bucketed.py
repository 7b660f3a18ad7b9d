"""A model whose gradients are exchanged in buckets, and the replacement of its buckets in the middle of training.

New buckets need another DistributedDataParallel around the same module, made without any exchange. The strategy that
owns the wrapper makes it, so compression and options stay the same. Between two optimizer steps that changes nothing in
parameters, gradients and optimizer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gangline.pytorch.fusion.bucket_partition import DEFAULT_CAPS, MIB

# Newer torch takes a cap for each bucket, and then needs no first step with one single bucket.
HAS_CAP_LIST = "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel.__init__).parameters


class BucketedModel:
    """wrapper: returns the present wrapper. replace: takes options of DistributedDataParallel, drops the present
    wrapper and makes one with them. wire_ratio: the share of the bytes that compression leaves; None where buckets must
    stay. is_outdated: whether other parameters are trained now, so that no measurement is valid any more.
    """

    is_outdated = False

    def __init__(
        self,
        wrapper: Callable[[], DistributedDataParallel],
        replace: Callable[[dict[str, Any]], None],
        wire_ratio: float | None,
    ) -> None:
        self._wrapper = wrapper
        self._replace = replace
        self.wire_ratio = wire_ratio
        ours = wrapper()
        self.inner: nn.Module = ours.module
        self.parameters = [parameter for parameter in self.inner.parameters() if parameter.requires_grad]
        # Such a wrapper never learns the order in which gradients are produced: it keeps the reversed parameter order.
        self.keeps_first_buckets = bool(ours.find_unused_parameters and not ours.static_graph)

    @property
    def num_bytes(self) -> list[int]:
        """Returns the bytes of each trained parameter's gradient, in the order of the parameters."""
        return [parameter.numel() * parameter.element_size() for parameter in self.parameters]

    @property
    def kinds(self) -> list[int]:
        """Returns a number for each parameter; parameters with the same number may share a bucket."""
        kinds = [(parameter.dtype, parameter.device) for parameter in self.parameters]
        return [kinds.index(kind) for kind in kinds]

    @property
    def is_exchanging(self) -> bool:
        """Returns whether a backward pass that runs now would send gradients."""
        return bool(self._wrapper().require_backward_grad_sync)

    def rewrap(self, caps: tuple[int, ...]) -> None:
        """Replaces the buckets. caps: bytes, in the order in which buckets are sent. Called by all ranks between two
        steps.
        """
        self._replace(self._options(caps))

    def obstacle(self) -> str | None:
        """Returns why the buckets must not be tuned; None when they may be."""
        modules = list(self.inner.modules())
        if self.wire_ratio is None:
            return "powersgd remembers what it left out of each bucket"
        if any(getattr(module, "sparse", False) for module in modules):
            return "sparse gradients have buckets of their own"
        if any(_is_compiled(module) for module in modules):
            return "torch.compile has fixed the buckets"
        if len(self.parameters) < 2 or sum(self.num_bytes) <= MIB:
            return "all gradients fit into one bucket"
        if self.keeps_first_buckets and any(self.kinds):
            return "gradients of several types with find_unused_parameters"
        return None

    def _options(self, caps: tuple[int, ...]) -> dict[str, Any]:
        is_default = caps == DEFAULT_CAPS
        if is_default and (self.keeps_first_buckets or not HAS_CAP_LIST):
            return {}
        if not HAS_CAP_LIST:
            return {"bucket_cap_mb": caps[-1] / MIB}
        # torch counts caps from the first parameter, whose gradient is produced last, until it knows the real order.
        ordered = reversed(caps) if self.keeps_first_buckets else caps
        return {"bucket_cap_mb_list": [cap / MIB for cap in ordered]}


def _is_compiled(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None or isinstance(module, torch._dynamo.OptimizedModule)
