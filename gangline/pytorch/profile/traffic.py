"""Measures this rank's collectives for gradients and parameters, and how much of their time overlaps with computation.

Owns the sums over the meters of a strategy; each meter measures one way in which the ranks exchange data. The profile
drives it. Exchanges outside a step's phases, as in a validation, are not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gangline.pytorch.profile.clock import StepClock


class TrafficMeter(Protocol):
    """Measures some of a strategy's collectives. They never run at the same time as those of its other meters. A meter
    costs nothing until `start` and after `stop`."""

    def start(self, is_in_step: Callable[[], bool]) -> None:
        """Starts to measure. is_in_step: returns whether a collective that begins now belongs to a step."""
        ...

    def stop(self) -> None: ...

    def end_step(self) -> None:
        """Called after a batch whose gradients were exchanged. On a GPU it waits for that exchange at most."""
        ...

    def take(self) -> tuple[float, float]:
        """Returns the seconds since the last call in which one of the collectives was under way, and the part of them
        in which the computation did not wait. May wait for a GPU."""
        ...


class Traffic:
    """Sums the meters of a strategy. meters: none where nothing is exchanged or nothing can be measured."""

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
        """Called after a batch whose gradients were exchanged."""
        for meter in self._meters:
            meter.end_step()

    def take(self, steps: int) -> dict[str, float]:
        """Returns mean seconds a step since the last call; steps: number of steps measured since then."""
        if not self._meters:
            return {}
        meter_seconds = [meter.take() for meter in self._meters]
        return {
            "communication_seconds": sum(seconds for seconds, _ in meter_seconds) / steps,
            "hidden_communication_seconds": sum(hidden for _, hidden in meter_seconds) / steps,
        }
