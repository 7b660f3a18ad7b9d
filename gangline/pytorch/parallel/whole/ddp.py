"""Trains the whole model on every rank; DistributedDataParallel averages the gradients during the backward pass."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gangline.errors import invalid
from gangline.pytorch.data.torch_error import unused_parameters
from gangline.pytorch.fusion.bucketed import BucketedModel
from gangline.pytorch.parallel.shared import reentrant
from gangline.pytorch.parallel.shared.batch_norm import prepare_batch_norm
from gangline.pytorch.parallel.shared.broadcast import broadcast_tensors
from gangline.pytorch.parallel.shared.copies import Copies
from gangline.pytorch.parallel.shared.ownership import WrappedModels, check_initialised, class_name
from gangline.pytorch.parallel.shared.reentrant import Notice
from gangline.pytorch.parallel.shared.strategy import Holder, Strategy, sparse_module
from gangline.pytorch.parallel.whole.ddp_meter import DdpMeter
from gangline.pytorch.parallel.whole.exchange import Exchange
from gangline.pytorch.parallel.whole.freshness import FreshForwards
from gangline.pytorch.parallel.whole.late_exchange import LateExchange
from gangline.pytorch.parallel.whole.module_route import OriginalForward, reroute, route
from gangline.pytorch.parallel.whole.same_change import check_same_change
from gangline.pytorch.parallel.whole.stray import average_all, average_marked, average_strays, find_strays
from gangline.pytorch.profile.traffic import TrafficMeter

_log = logging.getLogger("gangline")


class DdpStrategy(Strategy):
    """Averages gradients with DistributedDataParallel. options: passed on to it, as find_unused_parameters. exchange:
    buckets and compression."""

    name: ClassVar[str] = "ddp"

    def __init__(self, device: torch.device, options: dict[str, Any], exchange: Exchange) -> None:
        self._device_ids = [device.index] if device.type == "cuda" else None
        self._options = options
        self._exchange = exchange
        self._shares_buffers = bool(options.get("broadcast_buffers", True))
        self._routed: list[_Routed] = []
        # The models whose gradients are exchanged: those that have, or had, a trained parameter.
        self._exchanged: list[_Routed] = []
        self._forwards = FreshForwards()
        # With these options torch inspects a forward pass's outputs, for unused parameters or for the static graph.
        self._needs_forward = bool(options.get("find_unused_parameters") or options.get("static_graph"))
        self._is_static = bool(options.get("static_graph"))
        self._expecting: set[int] = set()
        self._is_repeated = False
        self._models = WrappedModels(self.name, replaces=False)
        self._is_exchanging = True
        # Id of the optimizer whose stray gradients are averaged already.
        self._prepared: int | None = None
        self._bucketed: BucketedModel | None = None

    def prepare_model(self, model: nn.Module) -> nn.Module:
        check_initialised(model)
        conflict = sparse_conflict(self.name, model) if self._device_ids is not None else None
        if conflict is not None:
            raise invalid("parallelism.model", conflict)
        prepare_batch_norm(model)
        is_trained = any(parameter.requires_grad for parameter in model.parameters())
        if not is_trained:
            # A wrapper sends the parameters when it is made. This model gets no wrapper, as it has nothing to train.
            broadcast_tensors((*model.parameters(), *model.buffers()))
        # A ScriptModule cannot get another class, so it is not routed. It may still be one that is never trained.
        if is_trained or not isinstance(model, torch.jit.ScriptModule):
            self._route(model)
        self._models.add(model)
        return model

    def prepare_optimizer(self, optimizer: Optimizer) -> Optimizer:
        self._models.check(optimizer)
        self._models.watch(optimizer)
        optimizer.register_step_pre_hook(self._before_any_step)
        return optimizer

    def before_step(self, optimizer: Optimizer) -> None:
        stray_ids = find_strays(optimizer)
        if stray_ids:
            self._average_strays(optimizer, stray_ids)
        self._prepared = id(optimizer)

    def _before_any_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Averages stray gradients before a step. Also covers an optimizer that the trial steps by itself."""
        if self._prepared != id(optimizer):
            self.before_step(optimizer)
        self._prepared = None

    def _average_strays(self, optimizer: Optimizer, stray_ids: set[int]) -> None:
        late = (routed for routed in self._exchanged if routed.late.is_on)
        average_strays(optimizer, stray_ids, {id(parameter) for routed in late for parameter in routed.trained})

    def compress_gradients(self, optimizer: Optimizer, is_wanted: bool) -> None:
        stepped_ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for routed in self._exchanged:
            if any(id(parameter) in stepped_ids for parameter in routed.model.parameters()):
                assert routed.number is not None
                assert routed.wrapper is not None
                self._exchange.compress(routed.number, routed.wrapper, is_wanted, class_name(routed.model))

    def share_buffers(self, models: Iterable[nn.Module]) -> None:
        if self._shares_buffers:
            broadcast_tensors(buffer for model in models for buffer in model.buffers())

    def holder_of(self, tensor: torch.Tensor, optimizer: Optimizer | None = None) -> Holder:
        if optimizer is None and self._is_own_buffer(tensor):
            return Holder(dist.get_rank(), 1)
        return Holder(dist.get_rank(), dist.get_world_size())

    def _is_own_buffer(self, tensor: torch.Tensor) -> bool:
        """Returns whether each rank has a value of its own in this tensor of a model's state."""
        address = tensor.data_ptr()
        return not self._shares_buffers and any(buffer.data_ptr() == address for buffer in self._models.buffers())

    def replicated(self) -> Sequence[Copies]:
        parameters = self._models.named_parameters()
        return (Copies("rank", parameters),) if parameters else ()

    def describe_buffers(self) -> str:
        if self._shares_buffers:
            return "each forward pass gives all ranks those of rank 0, which validations and checkpoints have too"
        return "each rank validates with its own, and checkpoints have those of rank 0"

    def accumulate(self) -> AbstractContextManager[None]:
        return self._without_exchange()

    def bucketed(self) -> BucketedModel | None:
        if len(self._exchanged) != 1 or self._exchange.bucket_cap_mb is not None:
            return None
        (routed,) = self._exchanged
        self._bucketed = BucketedModel(
            lambda: self._wrappers[0], lambda options: self._rewrap(routed, options), self._exchange.wire_ratio
        )
        return self._bucketed

    def before_backward(self, is_first: bool) -> None:
        self._prepared = None
        self._is_repeated = not is_first
        for routed in self._exchanged:
            if routed.late.is_on:
                routed.late.begin_backward()
            if self._needs_forward or routed.number in self._expecting:
                continue
            if is_first:
                self._expect(routed)
            else:
                self._repeat(routed)
        if self._needs_forward:
            self._forwards.begin_backward(is_first)
        self._expecting.clear()

    def after_backward(self) -> None:
        if self._needs_forward:
            self._forwards.end_backward()
        for routed in self._exchanged:
            if routed.late.is_on or routed.marks is not None:
                self._exchange_rest(routed)
        if self._needs_forward:
            return
        for routed in self._exchanged:
            # Runs after every backward pass for every parameter, so it calls nothing where all have gradients.
            for parameter in routed.wrapped_for:
                if parameter.grad is None:
                    self._check_used(routed)
                    break
        if self._is_repeated:
            # The gradients of the first pass are present, so only torch's own count shows those that are missing in
            # this pass.
            for wrapper in self._wrappers:
                wrapper.reducer._rebuild_buckets()

    def traffic_meters(self) -> Sequence[TrafficMeter]:
        return [DdpMeter(lambda: tuple(self._wrappers))]

    def rank_state(self) -> dict[str, Any]:
        return self._exchange.rank_state()

    def load_rank_state(self, state: dict[str, Any] | None) -> None:
        self._exchange.load_rank_state(state)

    def _exchange_rest(self, routed: _Routed) -> None:
        """Averages the gradients that torch does not exchange in this backward pass: those of a late exchange, and
        those that a second pass through one graph has changed. Those of the first pass are means already, which another
        mean does not change."""
        if routed.late.is_on and routed.trained:
            average_all(routed.trained)
            routed.late.end_backward()
            self._apply_exchange(routed)
        if routed.marks is not None:
            before, routed.marks = routed.marks, None
            changed = [
                mark is not None and mark != old for mark, old in zip(routed.look_at_gradients(), before, strict=True)
            ]
            average_marked(routed.trained, changed)

    def _check_used(self, routed: _Routed) -> None:
        """Raises an error for gradients that are missing after a backward pass. torch exchanges a bucket once all of
        its gradients are present, and reports a missing one a step later."""
        unused = [parameter for parameter in routed.wrapped_for if parameter.grad is None]
        if len(unused) == len(routed.wrapped_for):
            # A model that this backward pass has not reached at all waits for its own backward pass.
            self._models.check_unchanged(routed.model)
            return
        name_by_id = {id(parameter): name for name, parameter in routed.model.named_parameters()}
        names = [name_by_id.get(id(parameter), "a parameter that it has no more") for parameter in unused]
        raise unused_parameters(class_name(routed.model), names, self.name)

    @property
    def _wrappers(self) -> list[DistributedDataParallel]:
        return [routed.wrapper for routed in self._exchanged if routed.wrapper is not None]

    def _route(self, model: nn.Module) -> None:
        routed = _Routed(model)
        reentrant.install()
        route(
            model,
            lambda inner: self._wrap(routed, inner),
            before_pass=partial(self._before_pass, routed),
            before_local_pass=partial(self._before_local_pass, routed),
            after_forward=partial(self._after_forward, routed),
        )
        self._routed.append(routed)

    def _before_pass(self, routed: _Routed) -> None:
        if Notice.depth:
            self._keep_late(routed)
        elif routed.has_changed():
            self._follow(routed)
        routed.passes_before = Notice.num_passes
        routed.on_forward()

    def _before_local_pass(self, routed: _Routed) -> None:
        if Notice.depth:
            # The pass that records gradients runs inside the backward pass.
            self._keep_late(routed)
            routed.on_forward()

    def _after_forward(self, routed: _Routed) -> None:
        """Decides when this pass's gradients are exchanged. Called before DistributedDataParallel prepares for the
        backward pass."""
        is_with_checkpoints = routed.passes_before != Notice.num_passes
        if is_with_checkpoints and routed.wrapper is not None and routed.trained and not self._is_static:
            routed.late.end_pass(routed.trained)
            self._apply_exchange(routed)

    def _keep_late(self, routed: _Routed) -> None:
        if routed.wrapper is not None:
            routed.late.keep_on()
            self._apply_exchange(routed)

    def _apply_exchange(self, routed: _Routed) -> None:
        if routed.wrapper is not None:
            routed.wrapper.require_backward_grad_sync = self._is_exchanging and not routed.late.is_on

    def _wrap(self, routed: _Routed, inner: OriginalForward) -> nn.Module:
        routed.inner = inner
        if not routed.trained:
            routed.bare = _Bare(inner)
            return routed.bare
        routed.number = len(self._wrappers)
        routed.wrapper, routed.wrapped_for = self._make_wrapper(inner, {}), routed.trained
        self._exchanged.append(routed)
        self._exchange.attach(routed.wrapper)
        if self._needs_forward:
            routed.on_forward = self._forwards.add(class_name(routed.model), routed.model)
        else:
            routed.on_forward = partial(self._expecting.add, routed.number)
        self._apply_exchange(routed)
        return routed.wrapper

    def _follow(self, routed: _Routed) -> None:
        """Exchanges the gradients of the presently trained parameters, if the user has frozen or unfrozen some since
        the model was wrapped."""
        model, name = routed.model, class_name(routed.model)
        routed.look()
        if not routed.trained:
            # A discriminator is an example while its generator is trained. No gradient arrives, and a wrapper would
            # wait for all.
            routed.bare = _Bare(routed.inner)
            reroute(model, routed.bare)
            return
        if routed.is_wrapped_for():
            assert routed.wrapper is not None
            reroute(model, routed.wrapper)
            return
        check_same_change(name, routed.names())
        if dist.get_rank() == 0:
            count = len(routed.trained)
            _log.info("%s: %s is wrapped anew, as %d of its parameters are trained now", self.name, name, count)
        if self._bucketed is not None:
            self._bucketed.is_outdated = True
        if routed.wrapper is None:
            reroute(model, self._wrap(routed, routed.inner))
        else:
            self._rewrap(routed, {})
            if self._needs_forward:
                self._forwards.renew(routed.number or 0, model)

    def _expect(self, routed: _Routed) -> None:
        """Has torch exchange the gradients of the coming backward pass for a model without a forward pass since the
        last one. Such a trial calls the model's parts or methods, or goes through a graph again. A wrapper's own
        forward pass does the same, but also sends buffers, which would change tensors that the graph has kept."""
        if routed.has_changed():
            self._follow(routed)
        assert routed.wrapper is not None
        if not routed.trained or not routed.wrapper.require_backward_grad_sync:
            return
        routed.wrapper.reducer._rebuild_buckets()
        routed.wrapper.reducer.prepare_for_backward([])

    def _repeat(self, routed: _Routed) -> None:
        """Prepares for a second backward pass of a batch without a forward pass of this model before it. torch would
        wait for the gradients of all parameters, and the pass may reach some of them only."""
        if routed.has_changed():
            self._follow(routed)
        if routed.trained and not routed.late.is_on:
            routed.marks = routed.look_at_gradients()

    def _rewrap(self, routed: _Routed, options: dict[str, Any]) -> None:
        """Replaces the model's wrapper by one with other options of DistributedDataParallel."""
        # The old wrapper must be gone first: two at a time would exchange every gradient twice.
        routed.wrapper = None
        wrapper = self._make_wrapper(routed.inner, {**options, "init_sync": False})
        self._exchange.attach(wrapper, replaced=routed.number)
        routed.wrapper, routed.wrapped_for = wrapper, routed.trained
        self._apply_exchange(routed)
        reroute(routed.model, wrapper)

    def _make_wrapper(self, inner: OriginalForward, options: dict[str, Any]) -> DistributedDataParallel:
        options = {**self._exchange.options(), **self._options, **options}
        with inner.walked_once():
            return DistributedDataParallel(inner, device_ids=self._device_ids, **options)

    @contextmanager
    def _without_exchange(self) -> Iterator[None]:
        # Like DistributedDataParallel.no_sync, but it also covers a wrapper that is made meanwhile.
        self._set_exchange(False)
        try:
            yield
        finally:
            self._set_exchange(True)
        self._forwards.forget()
        self._expecting.clear()

    def _set_exchange(self, is_on: bool) -> None:
        self._is_exchanging = is_on
        for routed in self._routed:
            self._apply_exchange(routed)


class _Routed:
    """Keeps one model and the wrappers for its forward passes.

    trained: its trained parameters at the last call of `look`. on_forward: called at each forward pass whose gradients
    may be exchanged; it does nothing for a model that never had a wrapper. wrapper, wrapped_for: the present wrapper,
    and the parameters whose gradients it exchanges. number: index of its first wrapper among those of all models; None
    where it never had one.
    """

    inner: OriginalForward

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.wrapper: DistributedDataParallel | None = None
        self.wrapped_for: list[nn.Parameter] = []
        self.bare: _Bare | None = None
        self.number: int | None = None
        self.on_forward: Callable[[], None] = _do_nothing
        self.late = LateExchange()
        # Forward passes of reentrant checkpoints before the running pass of this model.
        self.passes_before = 0
        # Of the gradients before a second pass, which shows what it has changed; None where there is no such pass.
        self.marks: list[tuple[int, int] | None] | None = None
        self.look()

    def look(self) -> None:
        self._parameters = list(self.model.parameters())
        self._are_trained = [parameter.requires_grad for parameter in self._parameters]
        self.trained = [parameter for parameter in self._parameters if parameter.requires_grad]

    def has_changed(self) -> bool:
        """Returns whether other parameters are trained now than at the last look. Called before each forward pass: it
        costs tens of nanoseconds for each parameter, a walk over the modules a hundred times as long."""
        return [parameter.requires_grad for parameter in self._parameters] != self._are_trained

    def is_wrapped_for(self) -> bool:
        return [id(parameter) for parameter in self.wrapped_for] == [id(parameter) for parameter in self.trained]

    def look_at_gradients(self) -> list[tuple[int, int] | None]:
        """Returns the identity and the version of each trained parameter's gradient; None where there is none."""
        gradients = [parameter.grad for parameter in self.trained]
        return [None if gradient is None else (id(gradient), gradient._version) for gradient in gradients]

    def names(self) -> list[str]:
        return [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]


def _do_nothing() -> None:
    pass


class _Bare(nn.Module):
    """Takes the place of a wrapper for a model that has nothing to train."""

    def __init__(self, inner: OriginalForward) -> None:
        super().__init__()
        self.module = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def sparse_conflict(name: str, model: nn.Module) -> str | None:
    """Returns why the gradients of a model cannot be exchanged between GPUs; None where they can."""
    sparse = sparse_module(model)
    if sparse is None:
        return None
    return (
        f"{name} cannot exchange the sparse gradients of {sparse} between GPUs, as NCCL carries no sparse tensors; "
        "make it with sparse=False"
    )
