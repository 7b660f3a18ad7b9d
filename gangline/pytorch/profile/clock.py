"""StepClock: measures the phases of a training step on this rank.

Owns one stopwatch. A phase inside another one counts for itself alone, so that the phases of a step add up to its
duration. The loop and the context mark the phases; without profiling a mark costs one check of a flag.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

_NOTHING: AbstractContextManager[None] = nullcontext()


class StepClock:
    """Measures phases. is_running: whether phases are measured."""

    def __init__(self) -> None:
        self.is_running = False
        self._synchronize: Callable[[], None] | None = None
        self._seconds: dict[str, float] = {}
        self._steps = 0
        self._open: list[tuple[str, float]] = []

    def synchronize_with(self, wait: Callable[[], None]) -> None:
        """Sets a function that is called at the ends of phases, so that a phase includes the GPU work that it
        started."""
        self._synchronize = wait

    @property
    def is_in_phase(self) -> bool:
        """Returns whether the running code is part of a measured step."""
        return bool(self._open)

    def phase(self, name: str) -> AbstractContextManager[None]:
        return _Phase(self, name) if self.is_running else _NOTHING

    def end_step(self) -> None:
        """Counts one more measured step."""
        self._steps += self.is_running

    def take(self) -> tuple[int, dict[str, float]]:
        """Returns the steps and the total seconds of each phase since the last call."""
        steps_and_seconds = self._steps, self._seconds
        self._steps, self._seconds = 0, {}
        return steps_and_seconds

    def start(self, name: str) -> None:
        now = self._now()
        self._charge(now)
        self._open.append((name, now))

    def stop(self) -> None:
        now = self._now()
        self._charge(now)
        self._open.pop()
        if self._open:
            self._open[-1] = (self._open[-1][0], now)

    def _charge(self, now: float) -> None:
        if self._open:
            name, since = self._open[-1]
            self._seconds[name] = self._seconds.get(name, 0.0) + now - since

    def _now(self) -> float:
        if self._synchronize is not None:
            self._synchronize()
        return time.perf_counter()


class _Phase(AbstractContextManager[None]):
    def __init__(self, clock: StepClock, name: str) -> None:
        self._clock = clock
        self._name = name

    def __enter__(self) -> None:
        self._clock.start(self._name)

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._clock.stop()
