"""PURE: after how many batches the ranks look up together whether they should stop.

Looking costs one small exchange between all ranks, so it must be rare for short batches, and soon enough for long
ones. Its distance is counted in batches and agreed by the ranks, never timed by each of them: they must meet.
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST_BATCHES = 10_000


@dataclass(slots=True)
class Pace:
    """seconds: how far apart two looks should be. next_look: the batch count at which the next one is."""

    seconds: float = 0.5
    distance: int = 1
    next_look: int = 1

    def suggest(self, batches: int, elapsed_seconds: float) -> int:
        """The distance that this rank would choose after `batches` took so long; at most twice the present one, as
        the first batches of a process say little."""
        if batches < 1 or elapsed_seconds <= 0:
            return self.distance
        wanted = int(self.seconds * batches / elapsed_seconds)
        return max(1, min(wanted, 2 * self.distance, _MOST_BATCHES))

    def agree(self, now: int, distance: int) -> None:
        """All ranks call it with the same numbers."""
        self.distance = distance
        self.next_look = now + distance
