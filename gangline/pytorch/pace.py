"""PURE: computes after how many batches the ranks check together whether they should stop.

A check costs one small exchange between all ranks, so it must be rare for short batches, and soon enough for long ones.
The distance is counted in batches and agreed by the ranks. A rank must not time it alone, because all ranks must check
at the same batch.
"""

from __future__ import annotations

from dataclasses import dataclass

# Cap on the batches between two checks. It bounds the wait for a stop when batches become slower.
_MOST_BATCHES = 10_000


@dataclass(slots=True)
class Pace:
    """Distance between checks. seconds: wanted time between two checks. next_look: the batch count of the next one."""

    seconds: float = 0.5
    distance: int = 1
    next_look: int = 1

    def suggest(self, batches: int, elapsed_seconds: float) -> int:
        """Returns the distance that this rank would choose after `batches` took so long. At most twice the present one,
        because the first batches of a process say little."""
        if batches < 1 or elapsed_seconds <= 0:
            return self.distance
        wanted = int(self.seconds * batches / elapsed_seconds)
        return max(1, min(wanted, 2 * self.distance, _MOST_BATCHES))

    def agree(self, now: int, distance: int) -> None:
        """Sets the distance and the next check. All ranks call it with the same numbers."""
        self.distance = distance
        self.next_look = now + distance
