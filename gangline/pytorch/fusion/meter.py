"""Measures optimizer steps from the inside: when each began, when its gradients were ready, when it was over.

Owns the hooks on the model and its parameters. Validation, reports and checkpoints between steps are no part of them,
nor is the wait for data before a step's first forward pass. Only the tuner uses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from gangline.pytorch.profile.device_clock import Clock


@dataclass(slots=True)
class Step:
    """Holds marks of the clock, None for events that did not happen."""

    begin: Any = None
    last_gradient: Any = None
    end: Any = None
    gradients: list[tuple[int, Any]] = field(default_factory=list)  # parameter index and mark, in order of arrival


class Meter:
    """inner: the module that stays the same when its wrapper is replaced. parameters: those that are trained.
    is_exchanging: whether gradients are sent in the running backward pass.
    """

    def __init__(
        self, inner: nn.Module, parameters: Sequence[nn.Parameter], clock: Clock, is_exchanging: Callable[[], bool]
    ) -> None:
        self.clock = clock
        self._parameters = list(parameters)
        self._is_exchanging = is_exchanging
        self._running = Step()
        self._begin_handle = inner.register_forward_pre_hook(self._begin)
        self._all_handles: list[RemovableHandle] = []
        self._last_handle: RemovableHandle | None = None

    def end_step(self) -> Step:
        """Returns the step that is over. Called once after each."""
        step, self._running = self._running, Step()
        step.end = self.clock.mark()
        return step

    def listen_to_all(self) -> None:
        """Records every gradient from the next backward pass on."""
        self._all_handles = [
            _on_gradient(parameter, self._noting(index)) for index, parameter in enumerate(self._parameters)
        ]

    def stop_listening(self) -> None:
        for handle in self._all_handles:
            handle.remove()
        self._all_handles = []

    def listen_to_last(self, index: int) -> None:
        """Records the gradient that is produced last. index: of its parameter. Replaces an earlier one."""
        if self._last_handle is not None:
            self._last_handle.remove()
        self._last_handle = _on_gradient(self._parameters[index], self._note_last)

    def close(self) -> None:
        """Removes all hooks. May be called twice."""
        self.stop_listening()
        self._begin_handle.remove()
        if self._last_handle is not None:
            self._last_handle.remove()

    def seconds(self, step: Step) -> float:
        """Returns the time of the step; NaN for a step without a forward pass."""
        return self._between(step.begin, step.end)

    def exposed_seconds(self, step: Step) -> float:
        """Returns the time from the last gradient to the end of the step."""
        return self._between(step.last_gradient, step.end)

    def compute_seconds(self, step: Step) -> float:
        """From the step's begin to the last gradient."""
        return self._between(step.begin, step.last_gradient)

    def ready_seconds(self, step: Step) -> list[float]:
        """When each gradient came, counted from the first one, in the order in which they came."""
        first = step.gradients[0][1] if step.gradients else None
        return [self._between(first, mark) for _, mark in step.gradients]

    def _between(self, begin: Any, end: Any) -> float:
        return math.nan if begin is None or end is None else self.clock.seconds(begin, end)

    # Hooks; torch wants None from each.

    def _begin(self, module: nn.Module, arguments: Any) -> None:
        if self._running.begin is None and torch.is_grad_enabled():
            self._running.begin = self.clock.mark()

    def _noting(self, index: int) -> Callable[[torch.Tensor], None]:
        def note(parameter: torch.Tensor) -> None:
            if self._is_exchanging():
                self._running.gradients.append((index, self.clock.mark()))

        return note

    def _note_last(self, parameter: torch.Tensor) -> None:
        if self._is_exchanging():
            self._running.last_gradient = self.clock.mark()


def _on_gradient(parameter: nn.Parameter, hook: Callable[[torch.Tensor], None]) -> RemovableHandle:
    handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return handle
