"""Keeps a trial's own calls of torch from spoiling gradients that are not yet those of a whole step.

A pipeline calls train_batch once for each microbatch, and aggregation makes one step of several batches. train_batch is
written as if each call were a whole step. So its zero_grad would drop the gradients of earlier calls, its clipping
would scale parts of a sum, and its own optimizer.step() would step too early, or wait for ranks that do not step. fp16
scales gradients until context.step_optimizer. A zero_grad that belongs to the begin or the end of a step is left out
between calls; everything else is refused in one line.

Used by context.py and update.py. Where one call makes one step in full precision, nothing of torch is changed.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import nn
from torch.nn.utils import clip_grad
from torch.optim import Optimizer

from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel.shared.norm import NORM_CODE

# The modules of wrapped models.
_modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class GradientGuard:
    """reason: why gradients after a backward pass are not those of a step, as a clause; empty where they are.
    has_parts: whether the ranks have parts of the gradients before a step, of which a norm says nothing. may_clear:
    returns whether a zero_grad drops now what it would drop if one call made the whole batch."""

    # The guard of the trial whose train_batch runs in this process, if it is on. A trial may get another one after it
    # has wrapped its objects, so these ask the running one.
    running: GradientGuard | None = None

    def __init__(self, reason: str, *, has_parts: bool, may_clear: Callable[[], bool]) -> None:
        self.is_on = bool(reason)
        self._reason = reason
        self._has_parts = has_parts
        self._may_clear = may_clear
        # Whether gradients of earlier batches wait for the step.
        self._is_continued = False
        self._is_step_batch = True
        self._has_backward = False
        # Whether context.step_optimizer runs.
        self._is_stepping = False
        # Ids of the optimizers that the running batch has passed to context.step_optimizer.
        self._stepped: set[int] = set()

    def watch_model(self, model: nn.Module) -> None:
        if self.is_on:
            _patch_torch()
            _modules.update(model.modules())

    def watch_step(self, optimizer: Any) -> None:
        """Refuses steps of the trial's own. Called before a strategy watches the optimizer, as its work before a step
        waits for other ranks."""
        if self.is_on and isinstance(optimizer, Optimizer):
            optimizer.register_step_pre_hook(_check_step)

    def watch_clearing(self, optimizer: Any) -> None:
        """Watches zero_grad. Called after a strategy has extended it."""
        if not self.is_on or not hasattr(optimizer, "zero_grad"):
            return
        clear, number = optimizer.zero_grad, id(optimizer)

        @wraps(clear)
        def zero_grad(*arguments: Any, **options: Any) -> None:
            running = GradientGuard.running
            if running is None or running._is_clearing(number):
                clear(*arguments, **options)

        # A copy of the optimizer does not get it.
        optimizer.zero_grad = zero_grad

    def begin_batch(self, is_step_batch: bool) -> None:
        self._is_step_batch = is_step_batch
        self._has_backward = False
        self._stepped.clear()
        GradientGuard.running = self if self.is_on else None

    def end_batch(self) -> None:
        """Also called where train_batch has failed."""
        self._is_continued = not self._is_step_batch
        GradientGuard.running = None

    def on_backward(self) -> None:
        self._has_backward = True

    @contextmanager
    def stepping(self, optimizer: Any) -> Iterator[None]:
        """Returns a context for context.step_optimizer, in which all is allowed."""
        self._is_stepping = True
        try:
            yield
        finally:
            self._is_stepping = False
            self._stepped.add(id(optimizer))

    def check_clipping(self) -> None:
        """Raises GanglineError `pytorch.partial_gradients` for clipping outside of context.step_optimizer."""
        if GradientGuard.running is self and not self._is_stepping:
            raise self._refusal(
                "measures or clips gradients itself",
                "pass the clipping to step_optimizer: clip_grads=lambda parameters: "
                "torch.nn.utils.clip_grad_norm_(parameters, 1.0)",
            )

    def check_norm(self) -> None:
        """Raises GanglineError `pytorch.partial_gradients` for a norm of gradients of which this rank has a part."""
        if self._has_parts:
            self.check_clipping()

    def clears(self, module: nn.Module) -> bool:
        """Whether a call of the module's zero_grad clears now."""
        return module not in _modules or self._is_clearing(None)

    def _is_clearing(self, optimizer: int | None) -> bool:
        """optimizer: the id of the one whose zero_grad is called; None for a module's. Raises GanglineError
        `pytorch.partial_gradients` where neither clearing nor leaving it out is right."""
        if self._is_stepping:
            return True
        if not self._may_clear():
            return False
        has_stepped = bool(self._stepped) if optimizer is None else optimizer in self._stepped
        if has_stepped:
            # A step of these gradients is either made or still to come.
            return self._is_step_batch
        if not self._is_continued:
            return True
        if not self._has_backward:
            return False
        raise self._refusal(
            "clears gradients between a backward pass and context.step_optimizer, which would drop those of earlier "
            "calls",
            "leave zero_grad out, as context.step_optimizer clears gradients after each step",
        )

    def check_step(self, optimizer: Optimizer) -> None:
        """Raises GanglineError `pytorch.partial_gradients` for a step outside of context.step_optimizer."""
        if not self._is_stepping:
            raise self._refusal(
                f"calls {type(optimizer).__name__}.step() itself", "call context.step_optimizer(optimizer) in its place"
            )

    def _refusal(self, what: str, advice: str) -> GanglineError:
        return invalid("pytorch.partial_gradients", f"train_batch {what}, but {self._reason}; {advice}")


def _check_step(optimizer: Optimizer, *_: Any) -> None:
    if GradientGuard.running is not None:
        GradientGuard.running.check_step(optimizer)


def _patch_torch() -> None:
    """Lets torch's functions ask the running guard. Done once in a process, and only where a guard is on."""
    if hasattr(nn.Module.zero_grad, "__wrapped__"):
        return
    zero_grad = nn.Module.zero_grad
    torch_clips: Any = clip_grad
    group_tensors = torch_clips._group_tensors_by_device_and_dtype

    @wraps(zero_grad)
    def guarded_zero_grad(self: nn.Module, set_to_none: bool = True) -> bool:
        """Returns whether it has cleared."""
        guard = GradientGuard.running
        if guard is not None and not guard.clears(self):
            return False
        zero_grad(self, set_to_none)
        return True

    @wraps(group_tensors)
    def guarded_groups(*arguments: Any, **options: Any) -> Any:
        # All functions of torch that measure, scale or cut gradients come here.
        guard = GradientGuard.running
        if guard is not None:
            is_norm = sys._getframe(1).f_code is NORM_CODE
            guard.check_norm() if is_norm else guard.check_clipping()
        return group_tensors(*arguments, **options)

    nn.Module.zero_grad = guarded_zero_grad  # type: ignore[assignment, method-assign]
    torch_clips._group_tensors_by_device_and_dtype = guarded_groups
