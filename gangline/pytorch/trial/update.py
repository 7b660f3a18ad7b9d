"""Turns the gradients of a batch into a change of the parameters: aggregation, scaling, clipping, the step.

Owns the rules of context.backward and context.step_optimizer. The loop knows whether the running batch ends with a
step, and reports it with `begin_batch`.

Owns mixed precision: the type in which forward passes run, and the scaler that fp16 needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gangline.config.optimization import Optimizations
from gangline.errors import invalid
from gangline.pytorch.data.torch_error import explain, explain_step
from gangline.pytorch.parallel import Strategy
from gangline.pytorch.profile.clock import StepClock
from gangline.pytorch.trial.backward import PASSES, check_loss, second_order
from gangline.pytorch.trial.gradient_guard import GradientGuard, Reasons

_ZERO_GRAD = Optimizer.zero_grad
_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class _Nothing(ContextDecorator):
    """Does nothing, as a context or as a decorator. A region is either too."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


_NOTHING = _Nothing()


class Precision:
    """Makes the contexts of one trial's precision. kind: fp16, bf16, or None for the model's own type."""

    def __init__(self, device: torch.device, kind: str | None) -> None:
        # torch has no autocast for the meta device, where a plan runs a batch. That of the CPU stands for it.
        self._device_type = "cpu" if device.type == "meta" else device.type
        self.kind = kind
        self._regions: list[torch.autocast] = []

    def autocast(self) -> AbstractContextManager[None]:
        """Opens a region for a forward pass; does nothing without mixed precision."""
        return _NOTHING if self.kind is None else self._region(_TYPES[self.kind])

    @contextmanager
    def _region(self, number_type: torch.dtype) -> Iterator[None]:
        region = torch.autocast(self._device_type, dtype=number_type)
        with region:
            self._regions.append(region)
            try:
                yield
            finally:
                self._regions.pop()

    def outside(self) -> AbstractContextManager[None]:
        """Leaves the open regions for a backward pass, as if they had ended. A region keeps its copies of weights until
        it ends, and in a backward pass they would take memory beside all gradients."""
        return _NOTHING if self.kind is None else self._outside()

    @contextmanager
    def _outside(self) -> Iterator[None]:
        regions = list(self._regions)
        # The trial may have opened regions of its own inside of these.
        kind = self._device_type
        state = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        for region in reversed(regions):
            region.__exit__(None, None, None)
        try:
            with self.without_autocast() if torch.is_autocast_enabled(kind) else _NOTHING:
                yield
        finally:
            for region in regions:
                region.__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            if regions:
                torch.set_autocast_enabled(kind, state[0])
                torch.set_autocast_dtype(kind, state[1])

    def without_autocast(self) -> AbstractContextManager[Any]:
        """Returns a context for code inside a region that must not be cast, as an update."""
        return _NOTHING if self.kind is None else torch.autocast(self._device_type, enabled=False)

    def make_scaler(self, **options: Any) -> torch.amp.GradScaler | None:
        """Returns a scaler for fp16, which keeps small gradients from vanishing; else None. bf16 has the range of full
        precision."""
        return torch.amp.GradScaler(self._device_type, **options) if self.kind == "fp16" else None


def check_one_scaler(has_own: bool, has_wrapped: bool) -> None:
    """Raises GanglineError `pytorch.two_scalers`. has_own: the context made one for fp16. has_wrapped: the trial
    wrapped one."""
    if has_own and has_wrapped:
        raise invalid(
            "pytorch.two_scalers",
            "the trial wraps a GradScaler, but mixed_precision fp16 brings its own; drop wrap_scaler and the scaling "
            "of the loss, or set optimizations.mixed_precision to O0",
        )


class ParameterUpdate:
    """Makes and applies gradients for one trial. scalers: the trial's wrapped ones, and the one that fp16 adds.
    own_scaler: the latter alone.

    rounds: backward passes of this rank for one batch of each rank of the full gang; their gradients always become a
    mean. may_shrink: the trial may run on fewer slots, in several rounds, in a later attempt.

    Most batches are plain: one call of train_batch makes one whole step in full precision, without scaling and without
    a measurement. `begin_batch` decides that, and the plain batch leaves out all contexts, which do nothing for it.
    """

    def __init__(
        self,
        optimizations: Optimizations,
        strategy: Strategy,
        precision: Precision,
        clock: StepClock,
        *,
        rounds: int = 1,
        may_shrink: bool = False,
    ) -> None:
        self.scalers: list[Any] = []
        self.own_scaler: Any = None
        self.is_step_batch = True
        # Whether the running batch needs none of this trial's or this batch's special treatment, see begin_batch.
        self._is_plain_batch = False
        self._weight = 1.0
        self._is_first_backward = True
        self._is_in_batch = False
        # Whether train_batch runs for a part of a batch, and not for the last one.
        self._is_part = False
        self._strategy = strategy
        self._precision = precision
        self._clock = clock
        self._frequency = optimizations.aggregation_frequency
        self._rounds = rounds
        self._may_shrink = may_shrink
        self.averages(optimizations.average_aggregated_gradients)
        self.guard = GradientGuard(strategy, self._reasons())

    def _reasons(self) -> Reasons:
        continued = remedy = ""
        if self._frequency > 1:
            continued = f"aggregation_frequency makes one step of {self._frequency} batches"
            remedy = "set optimizations.aggregation_frequency to 1"
        elif self._may_shrink:
            continued = "resources.min_slots_per_trial makes several calls of a batch on fewer slots"
            remedy = "leave resources.min_slots_per_trial out"
        partial = continued
        if self._strategy.runs_batch:
            partial = f"{self._strategy.name} calls it once for each microbatch"
        elif self._frequency == 1 and self._precision.kind == "fp16":
            partial = "mixed_precision fp16 scales gradients until context.step_optimizer"
        return Reasons(partial, continued, remedy)

    def averages(self, is_on: bool) -> None:
        """Sets whether gradients that are aggregated over several batches become a mean, or stay a sum."""
        self._loss_divisor = self._rounds * (self._frequency if is_on else 1)

    def begin_batch(self, is_step_batch: bool, weight: float = 1.0) -> bool:
        """Prepares for a batch. is_step_batch: whether it ends with a step. weight: of this rank's loss in the mean
        over all ranks, which may have other numbers of records. Returns whether the batch is plain: then one call of
        train_batch, in no context, makes the whole step."""
        self.is_step_batch = is_step_batch
        self._weight = weight
        self._is_first_backward = self._is_in_batch = True
        self._is_plain_batch = (
            is_step_batch
            and weight == 1
            and self._loss_divisor == 1
            and self._precision.kind is None
            and self.own_scaler is None
            and not self.guard.is_on
            and not self._clock.is_running
            and not self._strategy.runs_batch
        )
        # An assignment to a class makes Python look its methods up again, so a guard that is off makes none.
        if self.guard.is_on or GradientGuard.running is not None:
            self.guard.begin_batch()
        return self._is_plain_batch

    @property
    def refuses_own_backward(self) -> bool:
        """Whether a backward pass of the trial's own would have got other gradients from context.backward."""
        return self._is_in_batch and (self._strategy.has_peers or self._loss_divisor > 1 or self.own_scaler is not None)

    def backward(self, loss: torch.Tensor, gradient: Any, retain_graph: bool, create_graph: bool) -> None:
        check_loss(loss, gradient)
        is_plain = self._is_plain_batch
        if not is_plain:
            self.guard.check_backward()
        if create_graph and self._strategy.has_peers:
            raise second_order(self._strategy.name)
        if is_plain:
            self._run_pass(loss, gradient, retain_graph, create_graph)
            return
        with self._clock.phase("backward"), self._precision.outside():
            if self._loss_divisor > 1:
                loss = loss / self._loss_divisor
            if self._weight != 1:
                loss = loss * self._weight
            if self.own_scaler is not None:
                loss = self.own_scaler.scale(loss)
            self._run_pass(loss, gradient, retain_graph, create_graph)

    def _run_pass(self, loss: torch.Tensor, gradient: Any, retain_graph: bool, create_graph: bool) -> None:
        """Makes a backward pass, and exchanges its gradients where the batch ends with a step."""
        strategy = self._strategy
        if self.is_step_batch:
            strategy.before_backward(self._is_first_backward)
            self._is_first_backward = False
        # A hook of the trial's may call context.backward inside of another one.
        PASSES.depth += 1
        try:
            strategy.run_backward(loss, gradient, retain_graph, create_graph)
            if not self.is_step_batch:
                return
            # after_backward may reduce gradients that the pass has left, which still belongs to the pass.
            if self.guard.is_on:
                with self.guard.following():
                    strategy.after_backward()
            else:
                strategy.after_backward()
        except RuntimeError as error:
            meaning = explain(error, strategy.name)
            if meaning is None:
                raise
            raise meaning from error
        finally:
            PASSES.depth -= 1

    def step(
        self,
        optimizer: Optimizer,
        clip_grads: Callable[[Iterable[nn.Parameter]], Any] | None,
        auto_zero_grads: bool,
        scaler: Any,
        closure: Callable[[], Any] | None,
    ) -> None:
        if closure is not None or not auto_zero_grads:
            self._check(optimizer, auto_zero_grads, scaler, closure)
        if self._is_plain_batch:
            self._apply(optimizer, clip_grads, auto_zero_grads, scaler, closure)
        elif not self.guard.is_on:
            if self.is_step_batch:
                self._step(optimizer, clip_grads, auto_zero_grads, scaler, closure)
        elif self.is_step_batch:
            with self.guard.stepping():
                closure = closure and self.guard.close(closure)
                self._step(optimizer, clip_grads, auto_zero_grads, scaler, closure)
            self.guard.forget(optimizer)
        elif not self._is_part:
            self.guard.keep(optimizer)

    def _check(
        self, optimizer: Optimizer, auto_zero_grads: bool, scaler: Any, closure: Callable[[], Any] | None
    ) -> None:
        """Refuses a closure, or gradients that the trial clears itself, where this strategy cannot have them. Raises
        GanglineError `pytorch.*`, `parallelism.optimizer`."""
        if self._frequency > 1 and not auto_zero_grads:
            raise invalid(
                "pytorch.zero_grads",
                f"step_optimizer(auto_zero_grads=False) with an aggregation_frequency of {self._frequency}: only the "
                "trainer knows after which batches gradients may be cleared; leave auto_zero_grads on",
            )
        if self._may_shrink and not auto_zero_grads:
            raise invalid(
                "pytorch.zero_grads",
                "step_optimizer(auto_zero_grads=False) with resources.min_slots_per_trial: on fewer slots only the "
                "trainer knows after which batches gradients may be cleared; leave auto_zero_grads on",
            )
        if closure is not None and self._strategy.runs_batch:
            raise invalid(
                "parallelism.optimizer",
                f"{self._strategy.name} steps once all microbatches are trained, and step_optimizer has a closure, "
                "which would train them again; call it without a closure, or use ddp",
            )
        if closure is not None and self._scales(scaler):
            origin = "mixed_precision fp16 adds a GradScaler" if scaler is None else "it is called with a GradScaler"
            raise invalid(
                "pytorch.scaled_closure",
                f"step_optimizer has a closure, and {origin}, with which torch cannot use closures; call it without a "
                "closure, or train in bf16 or full precision, without a scaler",
            )
        if not auto_zero_grads and self.guard.has_left_out(optimizer):
            raise invalid(
                "pytorch.zero_grads",
                f"step_optimizer(auto_zero_grads=False) with {self._strategy.name}, and a zero_grad between the model "
                "and context.backward, where gradients of other microbatches exist, so nothing would clear those of "
                "the step before; leave auto_zero_grads on, or call zero_grad at the begin of train_batch",
            )

    def _scales(self, scaler: Any) -> bool:
        """Returns whether a step divides gradients by a scale. scaler: the one that the trial steps with, or None."""
        scaler = scaler if scaler is not None else self.own_scaler
        return scaler is not None and bool(getattr(scaler, "is_enabled", lambda: True)())

    def _step(
        self,
        optimizer: Optimizer,
        clip_grads: Callable[[Iterable[nn.Parameter]], Any] | None,
        auto_zero_grads: bool,
        scaler: Any,
        closure: Callable[[], Any] | None,
    ) -> None:
        with self._clock.phase("optimizer"), self._precision.without_autocast():
            self._apply(optimizer, clip_grads, auto_zero_grads, scaler, closure)

    def _apply(
        self,
        optimizer: Optimizer,
        clip_grads: Callable[[Iterable[nn.Parameter]], Any] | None,
        auto_zero_grads: bool,
        scaler: Any,
        closure: Callable[[], Any] | None,
    ) -> None:
        self._strategy.before_step(optimizer)
        scaler = scaler if scaler is not None else self.own_scaler
        if scaler is not None and (clip_grads is not None or self._strategy.divides_gradients):
            self._unscale(scaler, optimizer)
        if clip_grads is not None:
            # A list, because a function that iterates twice would find a generator empty the second time.
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            with self._strategy.clipping():
                clip_grads(parameters)
        try:
            if scaler is not None and closure is None:
                scaler.step(optimizer)
            else:
                optimizer.step(closure) if closure is not None else optimizer.step()
        except RuntimeError as error:
            meaning = explain_step(error, optimizer, self._strategy.name)
            if meaning is None:
                raise
            raise meaning from error
        if auto_zero_grads:
            _clear_gradients(optimizer)

    def _unscale(self, scaler: Any, optimizer: Optimizer) -> None:
        scaler.unscale_(optimizer)
        if self._strategy.divides_gradients and scaler.is_enabled():
            self._strategy.agree_on_overflow(scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"])

    @contextmanager
    def without_step(self) -> Iterator[None]:
        """Returns a context for a call of train_batch that is not the last one for its batch."""
        is_step_batch, self.is_step_batch = self.is_step_batch, False
        is_part, self._is_part = self._is_part, True
        try:
            with self.guard.inner_call():
                yield
        finally:
            self.is_step_batch, self._is_part = is_step_batch, is_part

    def leave_batch(self) -> None:
        """Called when train_batch has ended or failed."""
        self._is_in_batch = self._is_plain_batch = False
        if GradientGuard.running is not None:
            self.guard.end_batch()

    def end_batch(self) -> None:
        """Updates each scaler that has stepped an optimizer, once for all its optimizers. Skips a scaler that the trial
        has updated already: in torch an update without a step before it is an error."""
        for scaler in self.scalers:
            states = getattr(scaler, "_per_optimizer_states", {})
            if any(state["found_inf_per_device"] for state in states.values()):
                scaler.update()


def _clear_gradients(optimizer: Optimizer) -> None:
    """Does what zero_grad does. torch's own marks itself for a profiler, which takes longer than the rest of it where
    none runs."""
    # The class of a trial's own wrapper around an optimizer may have no such method.
    has_own = getattr(type(optimizer), "zero_grad", None) is not _ZERO_GRAD or "zero_grad" in vars(optimizer)
    if has_own or torch._C._autograd._profiler_enabled():
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
