"""Keeps a trial's own calls of torch from spoiling gradients that are not yet those of a whole step.

A pipeline calls train_batch once for each microbatch, and aggregation makes one step of several batches. train_batch is
written as if each call were a whole step. So its zero_grad would drop the gradients of earlier calls, its clipping
would scale parts of a sum, and its own optimizer.step() would step too early, or wait for ranks that do not step. fp16
scales gradients until context.step_optimizer.

A call of context.step_optimizer in a batch without a step marks the gradients of that optimizer's parameters, as they
wait for the step. A zero_grad leaves marked gradients as they are and clears the others, as it would if each call made
a step. It is refused where a later backward pass has added to a marked gradient, because the sum cannot be taken apart.
Own steps, and clipping and norms outside of context.step_optimizer, are refused.

Used by context.py and update.py. Where one call makes one step in full precision, nothing of torch is changed.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad
from torch.optim import Optimizer

from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel import Strategy
from gangline.pytorch.parallel.shared.norm import NORM_CODE, to_clip
from gangline.pytorch.parallel.shared.ownership import class_name
from gangline.pytorch.parallel.shared.strategy import Places
from gangline.pytorch.trial.gradient_mark import GradientMarks, gradients_at, taken_away

# Marks functions that ask the running guard.
_ASKS = "_gangline_asks_guard"


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why gradients are not those of a step, as clauses; empty where they are.

    partial: after a backward pass. continued: after all backward passes of a call of train_batch, because several calls
    make a step. remedy: what to do about `continued`.
    """

    partial: str = ""
    continued: str = ""
    remedy: str = ""


class GradientGuard:
    """Guard of one trial. is_on: whether there is anything to guard."""

    # The guard of the trial whose train_batch runs in this process, if it is on. A trial may get another one after it
    # has wrapped its objects, so what is put into torch asks the running one.
    running: GradientGuard | None = None

    def __init__(self, strategy: Strategy, reasons: Reasons) -> None:
        self.is_on = bool(reasons.partial)
        self._strategy = strategy
        self._reasons = reasons
        self._marks = GradientMarks(strategy.gradient_places)
        self._models: list[nn.Module] = []
        self._optimizers: list[Any] = []
        # Ids of the parameters whose gradients a zero_grad of the running call of train_batch would have dropped, which
        # other microbatches need.
        self._left_out: set[int] = set()
        # Whether context.step_optimizer runs, and a closure that it was called with.
        self._is_stepping = False
        self._is_in_closure = False

    def watch_model(self, model: nn.Module) -> None:
        """Watches zero_grad and clipping. Called after a strategy has prepared the model. May be called again."""
        if not self.is_on:
            return
        self._models.append(model)
        _guard_clipping()
        kinds: set[type] = {nn.Module, *map(type, model.modules())}
        for kind in kinds:
            _guard_class(kind)

    def watch_step(self, optimizer: Any) -> None:
        """Refuses steps of the trial's own. May be called again."""
        hooks = getattr(optimizer, "_optimizer_step_pre_hooks", None)
        if self.is_on and hooks is not None and _check_step not in hooks.values():
            handle = optimizer.register_step_pre_hook(_check_step)
            # A strategy's work before a step waits for other ranks.
            hooks.move_to_end(handle.id, last=False)

    def watch_clearing(self, optimizer: Any) -> None:
        """Watches zero_grad. Called after a strategy has extended it. May be called again."""
        if not self.is_on or not hasattr(optimizer, "zero_grad"):
            return
        self._optimizers.append(optimizer)
        if isinstance(optimizer, Optimizer):
            _guard_optimizer(optimizer)
            return
        # A copy of a trial's own class would have the original's zero_grad, if the object got another one.
        _guard_class(type(optimizer))
        inner = getattr(optimizer.zero_grad, "__self__", None)
        if isinstance(inner, Optimizer):
            _guard_optimizer(inner)

    def begin_batch(self) -> None:
        self._left_out = set()
        GradientGuard.running = self if self.is_on else None

    def end_batch(self) -> None:
        """Also called where train_batch has failed."""
        GradientGuard.running = None

    @contextmanager
    def inner_call(self) -> Iterator[None]:
        """Returns a context for a call of train_batch inside of another one."""
        left_out, self._left_out = self._left_out, set()
        try:
            yield
        finally:
            self._left_out = left_out

    def has_left_out(self, optimizer: Any) -> bool:
        """Returns whether the running call of train_batch has cleared gradients of this optimizer in vain."""
        return bool(self._left_out) and not self._left_out.isdisjoint(self._owner_ids(_parameters_of(optimizer)))

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Returns a context for context.step_optimizer, in which all is allowed."""
        self._is_stepping = True
        try:
            yield
        finally:
            self._is_stepping = False

    def keep(self, optimizer: Any) -> None:
        """Marks the gradients of an optimizer whose step comes in a later call of train_batch."""
        self._marks.set(_parameters_of(optimizer))

    def forget(self, optimizer: Any) -> None:
        """Drops the marks of an optimizer that has stepped."""
        self._marks.drop(_parameters_of(optimizer))

    def following(self) -> AbstractContextManager[None]:
        """Returns a context for work of the strategy that averages and moves gradients, and adds none. With one
        optimizer nothing is followed, which takes time: the backward pass before has changed what is marked."""
        return self._marks.following() if len(self._optimizers) > 1 else nullcontext()

    def close(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Returns a closure for an optimizer's step, which refuses what a closure can do in one call only."""
        if not self._reasons.continued:
            return closure

        def checked() -> Any:
            self._is_in_closure = True
            try:
                return closure()
            finally:
                self._is_in_closure = False

        return checked

    def check_backward(self) -> None:
        """Raises GanglineError `pytorch.partial_gradients` for context.backward in a closure that one call of several
        runs."""
        if self._is_in_closure:
            raise self._refusal_of_closure("context.backward")

    def check_clipping(self, gradients: Sequence[torch.Tensor]) -> None:
        """Raises GanglineError `pytorch.partial_gradients` for clipping outside of context.step_optimizer, where one of
        these gradients is that of a watched parameter. So it does without any, as with a microbatch whose backward pass
        has not begun, where torch's own error does not tell why."""
        if GradientGuard.running is not self or self._is_stepping:
            return
        found = self._strategy.gradient_places(self._watched())
        # Tensors without numbers have the address 0.
        addresses = {_address(gradient) for places in found for gradient in gradients_at(places)} - {0}
        if not gradients or any(_address(gradient) in addresses for gradient in gradients):
            raise self._refusal_of_clipping()

    def check_norm(self, gradients: Sequence[torch.Tensor]) -> None:
        """As check_clipping, for a norm. It says nothing where this rank has a part of the gradients."""
        if self._strategy.runs_batch:
            self.check_clipping(gradients)

    def check_clipped(self, parameters: Iterable[nn.Parameter] | nn.Parameter) -> list[nn.Parameter]:
        """Returns these parameters as a list. Raises GanglineError `pytorch.partial_gradients` for clipping outside of
        context.step_optimizer where one of them is watched."""
        chosen, is_guarded = to_clip(parameters), GradientGuard.running is self and not self._is_stepping
        if is_guarded and not self._watched_ids().isdisjoint(self._owner_ids(chosen)):
            raise self._refusal_of_clipping()
        return chosen

    @contextmanager
    def clearing(self, parameters: Iterable[torch.Tensor]) -> Iterator[None]:
        """Returns a context for a zero_grad over these parameters, in which it sees the gradients that it may clear.
        Raises GanglineError `pytorch.partial_gradients` where neither clearing nor leaving it out is right."""
        if self._is_stepping and not self._is_in_closure:
            yield
            return
        found = self._strategy.gradient_places(parameters)
        with taken_away(self._kept(found)):
            yield
            for places in found:
                # The zero_grad has seen one of these places at most.
                for owner, name in places if len(places) > 1 else ():
                    setattr(owner, name, None)

    def _kept(self, found: list[Places]) -> list[Places]:
        """Returns those parameters whose gradients a zero_grad leaves as they are."""
        is_clearing_right = self._strategy.is_clearing_right()
        if self._is_in_closure or not is_clearing_right:
            watched = self._watched_ids()
            inside = [places for places in found if id(places[0][0]) in watched]
            if inside and self._is_in_closure:
                raise self._refusal_of_closure("zero_grad")
            self._left_out.update(id(places[0][0]) for places in inside)
            return inside
        marked = [places for places in found if self._marks.is_marked(places)]
        for places in marked:
            if not self._marks.is_unchanged(places):
                raise self._refusal_of_clearing(places[0][0])
        return marked

    def check_step(self, optimizer: Optimizer) -> None:
        """Raises GanglineError `pytorch.partial_gradients` for a step outside of context.step_optimizer."""
        if not self._is_stepping:
            raise self._refusal(
                f"calls {type(optimizer).__name__}.step() itself", "call context.step_optimizer(optimizer) in its place"
            )

    def _watched(self) -> list[torch.Tensor]:
        """Returns the parameters of wrapped models, and of wrapped optimizers."""
        return [parameter for thing in (*self._models, *self._optimizers) for parameter in _parameters_of(thing)]

    def _watched_ids(self) -> set[int]:
        return self._owner_ids(self._watched())

    def _owner_ids(self, parameters: Iterable[torch.Tensor]) -> set[int]:
        return {id(places[0][0]) for places in self._strategy.gradient_places(parameters)}

    def _refusal(self, what: str, advice: str) -> GanglineError:
        return invalid("pytorch.partial_gradients", f"train_batch {what}, but {self._reasons.partial}; {advice}")

    def _refusal_of_clipping(self) -> GanglineError:
        return self._refusal(
            "measures or clips gradients itself",
            "pass the clipping to step_optimizer: clip_grads=lambda parameters: "
            "torch.nn.utils.clip_grad_norm_(parameters, 1.0)",
        )

    def _refusal_of_clearing(self, parameter: torch.Tensor) -> GanglineError:
        names = (class_name(model) for model in self._models if id(parameter) in self._owner_ids(model.parameters()))
        return invalid(
            "pytorch.partial_gradients",
            f"train_batch clears gradients of {next(names, 'a model')} that a backward pass after step_optimizer has "
            f"added to those of earlier calls, but {self._reasons.continued}; call zero_grad before the backward pass "
            "alone, keep other losses from this model's gradients with requires_grad_(False) or detach(), or "
            f"{self._reasons.remedy}",
        )

    def _refusal_of_closure(self, call: str) -> GanglineError:
        return invalid(
            "pytorch.partial_gradients",
            f"the closure of step_optimizer calls {call}, but {self._reasons.continued}, and a closure runs in the "
            f"last of them alone; call context.backward before step_optimizer, or {self._reasons.remedy}",
        )


def _parameters_of(thing: Any) -> list[torch.Tensor]:
    """Returns the parameters of a module or of an optimizer, which may be of a trial's own class."""
    if isinstance(thing, nn.Module):
        return list(thing.parameters())
    return [parameter for group in getattr(thing, "param_groups", ()) for parameter in group["params"]]


def _address(tensor: torch.Tensor) -> int:
    """Returns the address of a tensor's memory, which a view or a detached tensor shares."""
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return (local._values() if local.is_sparse else local).untyped_storage().data_ptr()


def _check_step(optimizer: Optimizer, *_: Any) -> None:
    if GradientGuard.running is not None:
        GradientGuard.running.check_step(optimizer)


def _guarded(clear: Callable[..., Any], cleared: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a zero_grad that asks the running guard. cleared: takes the arguments of the call and returns the module
    or the optimizer whose gradients it clears."""

    @wraps(clear)
    def zero_grad(*arguments: Any, **options: Any) -> Any:
        guard = GradientGuard.running
        if guard is None:
            return clear(*arguments, **options)
        with guard.clearing(_parameters_of(cleared(*arguments))):
            return clear(*arguments, **options)

    setattr(zero_grad, _ASKS, True)
    return zero_grad


def _guard_optimizer(optimizer: Optimizer) -> None:
    if not hasattr(optimizer.zero_grad, _ASKS):
        # A copy of the optimizer does not get it.
        optimizer.zero_grad = _guarded(optimizer.zero_grad, lambda *_: optimizer)  # type: ignore[method-assign]


def _guard_class(kind: type) -> None:
    """Lets the zero_grad that a class has, or gets from a base, ask the running guard. Done once in a process."""
    home = next((base for base in kind.__mro__ if "zero_grad" in vars(base)), None)
    clear = vars(home)["zero_grad"] if home is not None else None
    if inspect.isfunction(clear) and not hasattr(clear, _ASKS):
        home.zero_grad = _guarded(clear, lambda cleared, *_: cleared)  # type: ignore[union-attr]  # not None here


def _guard_clipping() -> None:
    """Lets torch's functions that measure, scale or cut gradients ask the running guard. Done once in a process."""
    torch_clips: Any = clip_grad
    group_tensors = torch_clips._group_tensors_by_device_and_dtype
    if hasattr(group_tensors, _ASKS):
        return

    @wraps(group_tensors)
    def guarded_groups(tensorlistlist: Any, *arguments: Any, **options: Any) -> Any:
        # All of these functions come here.
        guard = GradientGuard.running
        if guard is not None:
            is_norm = sys._getframe(1).f_code is NORM_CODE
            gradients = [tensor for row in tensorlistlist for tensor in row if tensor is not None]
            guard.check_norm(gradients) if is_norm else guard.check_clipping(gradients)
        return group_tensors(tensorlistlist, *arguments, **options)

    setattr(guarded_groups, _ASKS, True)
    torch_clips._group_tensors_by_device_and_dtype = guarded_groups
