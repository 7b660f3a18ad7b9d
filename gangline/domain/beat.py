"""PURE: how a rank's sign of life reads: how far it is, and whether anybody expects it to move on. See
gangline.core.beat, which writes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

UNKNOWN = -1
# Set in a part as soon as something was done since the last batch that is no part of a step.
BREAK = 1 << 32


class Phase(IntEnum):
    """OUTSIDE: nobody expects progress. WATCHED: a rank that stands still hangs. RESTING: what runs now may take as
    long as it likes, and the whole gang waits for it."""

    OUTSIDE = 0
    WATCHED = 1
    RESTING = 2


@dataclass(frozen=True, slots=True)
class Reading:
    """pid: 0 until a process has opened the file. batches: complete, UNKNOWN where nobody says so. part: counts what
    was done since then."""

    batches: int = UNKNOWN
    part: int = 0
    phase: Phase = Phase.OUTSIDE
    pid: int = 0

    @property
    def place(self) -> int | None:
        """How many batches were complete; None when the rank never said so."""
        return self.batches if self.pid and self.batches != UNKNOWN else None

    @property
    def is_broken(self) -> bool:
        """Whether the time since the last batch is not that of one step: a validation ran, or a script's own work."""
        return bool(self.part & BREAK)
