"""Every rank holds the whole model; gradients are averaged with DistributedDataParallel while backward runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gangline.pytorch.fusion.bucketed import BucketedModel
from gangline.pytorch.parallel.batch_norm import warn_of_batch_norm
from gangline.pytorch.parallel.broadcast import broadcast_tensors
from gangline.pytorch.parallel.ddp_meter import DdpMeter
from gangline.pytorch.parallel.exchange import Exchange
from gangline.pytorch.parallel.freshness import FreshForwards
from gangline.pytorch.parallel.ownership import WrappedModels, class_name
from gangline.pytorch.parallel.route import OriginalForward, reroute, route
from gangline.pytorch.parallel.strategy import Holder, Strategy
from gangline.pytorch.profile.traffic import TrafficMeter


class DdpStrategy(Strategy):
    """options: passed on to DistributedDataParallel, as find_unused_parameters. exchange: buckets and compression."""

    name: ClassVar[str] = "ddp"

    def __init__(self, device: torch.device, options: dict[str, Any], exchange: Exchange) -> None:
        self._device_ids = [device.index] if device.type == "cuda" else None
        self._options = options
        self._exchange = exchange
        self._wrappers: list[DistributedDataParallel] = []
        self._routed: list[nn.Module] = []
        self._forwards = FreshForwards()
        self._models = WrappedModels(self.name, replaces=False)

    def prepare_model(self, model: nn.Module) -> nn.Module:
        if any(parameter.requires_grad for parameter in model.parameters()):
            self._wrappers.append(route(model, self._wrap, self._forwards.add(class_name(model), model)))
            self._routed.append(model)
        self._models.add(model)
        warn_of_batch_norm(model)
        return model

    def prepare_optimizer(self, optimizer: Optimizer) -> Optimizer:
        self._models.check(optimizer)
        return optimizer

    def compress_gradients(self, optimizer: Optimizer, is_wanted: bool) -> None:
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for number, (model, wrapper) in enumerate(zip(self._routed, self._wrappers, strict=True)):
            if any(id(parameter) in held for parameter in model.parameters()):
                self._exchange.compress(number, wrapper, is_wanted, class_name(model))

    def share_buffers(self, models: Iterable[nn.Module]) -> None:
        if self._options.get("broadcast_buffers", True):
            broadcast_tensors(buffer for model in models for buffer in model.buffers())

    def holder_of(self, tensor: torch.Tensor, is_optimizer_state: bool) -> Holder:
        return Holder(dist.get_rank(), dist.get_world_size())

    def accumulate(self) -> AbstractContextManager[None]:
        return self._without_exchange()

    def bucketed(self) -> BucketedModel | None:
        if len(self._wrappers) != 1 or self._exchange.bucket_cap_mb is not None:
            return None
        return BucketedModel(lambda: self._wrappers[0], self._replace_wrapper, self._exchange.wire_ratio)

    def before_backward(self, is_first: bool) -> None:
        self._forwards.begin_backward(is_first)

    def after_backward(self) -> None:
        self._forwards.end_backward()

    def traffic_meters(self) -> Sequence[TrafficMeter]:
        return [DdpMeter(lambda: tuple(self._wrappers))]

    def rank_state(self) -> dict[str, Any]:
        return self._exchange.rank_state()

    def load_rank_state(self, state: dict[str, Any] | None) -> None:
        self._exchange.load_rank_state(state)

    def _wrap(self, inner: OriginalForward) -> DistributedDataParallel:
        wrapper = self._make_wrapper(inner, {})
        self._exchange.attach(wrapper)
        return wrapper

    def _replace_wrapper(self, options: dict[str, Any]) -> None:
        """The one wrapper anew, with other options of DistributedDataParallel."""
        inner = self._wrappers.pop().module
        # Only now is the old one gone; two at a time would exchange every gradient twice.
        wrapper = self._make_wrapper(inner, {**options, "init_sync": False})
        self._exchange.attach(wrapper, replaced=0)
        self._wrappers.append(wrapper)
        reroute(self._routed[0], wrapper)

    def _make_wrapper(self, inner: OriginalForward, options: dict[str, Any]) -> DistributedDataParallel:
        options = {**self._exchange.options(), **self._options, **options}
        with inner.walked_once():
            return DistributedDataParallel(inner, device_ids=self._device_ids, **options)

    @contextmanager
    def _without_exchange(self) -> Iterator[None]:
        with ExitStack() as stack:
            for wrapper in self._wrappers:
                stack.enter_context(wrapper.no_sync())
            yield
        self._forwards.forget()
