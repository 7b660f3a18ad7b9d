"""How long this rank's collectives for gradients and parameters take, and how much of that hides behind computation.

Owns the sums over the meters of a strategy; each of them measures one way in which its ranks exchange something. The
profile drives it: what was exchanged outside a step's phases, as in a validation, is none of its business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gangline.pytorch.profile.clock import StepClock


class TrafficMeter(Protocol):
    """Measures some of a strategy's collectives, which are not under way at the same time as those of its other meters.
    Until `start` and after `stop` it costs nothing."""

    def start(self, is_in_step: Callable[[], bool]) -> None:
        """is_in_step: whether what begins now belongs to a step."""
        ...

    def stop(self) -> None: ...

    def end_step(self) -> None:
        """Called after a batch whose gradients were exchanged. On a GPU it waits for that exchange at most."""
        ...

    def take(self) -> tuple[float, float]:
        """Seconds since the last call in which one of the collectives was under way, and in how many of these the
        computation did not wait for it. May wait for a GPU."""
        ...


class Traffic:
    """meters: the strategy's; none where nothing is exchanged or nothing can be measured."""

    def __init__(self, meters: Sequence[TrafficMeter], clock: StepClock) -> None:
        self._meters = meters
        self._clock = clock

    def start(self) -> None:
        for meter in self._meters:
            meter.start(lambda: self._clock.is_in_phase)

    def stop(self) -> None:
        for meter in self._meters:
            meter.stop()

    def end_step(self) -> None:
        """After a batch whose gradients were exchanged."""
        for meter in self._meters:
            meter.end_step()

    def take(self, steps: int) -> dict[str, float]:
        """Mean seconds a step since the last call; steps: how many were measured since then."""
        if not self._meters:
            return {}
        found = [meter.take() for meter in self._meters]
        return {
            "communication_seconds": sum(seconds for seconds, _ in found) / steps,
            "hidden_communication_seconds": sum(hidden for _, hidden in found) / steps,
        }
