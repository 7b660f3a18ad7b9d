"""Every rank holds the whole model; gradients are averaged with DistributedDataParallel while backward runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gangline.pytorch.parallel.route import route
from gangline.pytorch.parallel.strategy import Strategy


class DdpStrategy(Strategy):
    """options: passed on to DistributedDataParallel, as find_unused_parameters."""

    name: ClassVar[str] = "ddp"

    def __init__(self, device: torch.device, options: dict[str, Any]) -> None:
        self._device_ids = [device.index] if device.type == "cuda" else None
        self._options = options
        self._wrappers: list[DistributedDataParallel] = []

    def prepare_model(self, model: nn.Module) -> nn.Module:
        if any(parameter.requires_grad for parameter in model.parameters()):
            self._wrappers.append(route(model, self._wrap))
        return model

    def accumulate(self) -> AbstractContextManager[None]:
        return self._without_exchange()

    def _wrap(self, inner: nn.Module) -> DistributedDataParallel:
        # The gradients live in the buckets: that saves one copy of all gradients and its memory.
        return DistributedDataParallel(
            inner, device_ids=self._device_ids, gradient_as_bucket_view=True, **self._options
        )

    @contextmanager
    def _without_exchange(self) -> Iterator[None]:
        with ExitStack() as stack:
            for wrapper in self._wrappers:
                stack.enter_context(wrapper.no_sync())
            yield
