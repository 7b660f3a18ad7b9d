"""PURE: whether a gang hangs, from how far its ranks are, looked at about once a second.

A gang hangs as a whole: ranks wait for one another, so as long as one of them moves on, or is busy with something that
may take long, nobody hangs. The limit grows with the slowest step that was seen lately. The caller's clock comes in as
the seconds that have passed; a runner that was held up itself cannot judge, so a long gap between two looks counts as a
short one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gangline.domain.beat import UNKNOWN, Phase, Reading
from gangline.domain.failure import HangRule

# Steps by which the slowest recent one is told.
NUM_RECENT = 64
MAX_LOOK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Vigil:
    """still_seconds: since a rank moved on. recent: how long the last moves took, in seconds. has_stepped: whether any
    rank has ever completed a batch."""

    readings: Mapping[int, Reading] = field(default_factory=dict)
    still_seconds: float = 0.0
    recent: tuple[float, ...] = ()
    has_stepped: bool = False

    @property
    def is_watching(self) -> bool:
        """Whether the gang is expected to move on: nobody rests for whom the last of the others may be waiting."""
        last = min((found.batches for found in self._all_in(Phase.WATCHED)), default=None)
        return last is not None and all(found.batches > last for found in self._all_in(Phase.RESTING))

    def _all_in(self, phase: Phase) -> list[Reading]:
        return [reading for reading in self.readings.values() if reading.phase is phase]

    @property
    def is_outside(self) -> bool:
        return all(reading.phase is Phase.OUTSIDE for reading in self.readings.values())


@dataclass(frozen=True, slots=True)
class Hang:
    """rank: the one that is furthest behind. batches: it has completed, UNKNOWN where it never said so.
    newest_batches: of ranks that came further, None when none did. is_behind: whether others are further on in the same
    batch. num_ranks: that are watched."""

    rank: int
    batches: int
    still_seconds: float
    limit_seconds: float
    newest_batches: int | None
    is_behind: bool
    num_ranks: int

    @property
    def message(self) -> str:
        """One line without the rank's name."""
        where = "" if self.batches == UNKNOWN else f" after batch {self.batches}"
        what = f"hung: it has stood still{where} for {self.still_seconds:.0f} s (limit {self.limit_seconds:.0f} s)"
        if self.num_ranks == 1:
            return what
        if self.newest_batches is not None:
            return f"{what}, while others reached batch {self.newest_batches}"
        return f"{what}, {'while others came further' if self.is_behind else 'as do all others'}"


def look(vigil: Vigil, readings: Mapping[int, Reading], passed_seconds: float) -> Vigil:
    """readings: of the ranks that live, by rank. passed_seconds: since the last look."""
    still = vigil.still_seconds + min(passed_seconds, MAX_LOOK_SECONDS)
    if dict(readings) == dict(vigil.readings):
        return replace(vigil, still_seconds=0.0 if vigil.is_outside else still)
    has_moved = any(vigil.readings.get(rank, reading) != reading for rank, reading in readings.items())
    # Before the first step nothing is held against anybody, but it tells how long a step may take.
    is_measured = has_moved and (vigil.is_watching or not (vigil.has_stepped or vigil.is_outside))
    recent = (*vigil.recent, still)[-NUM_RECENT:] if is_measured else vigil.recent
    has_stepped = vigil.has_stepped or any(reading.phase is Phase.WATCHED for reading in readings.values())
    return Vigil(dict(readings), 0.0, recent, has_stepped)


def limit_of(vigil: Vigil, rule: HangRule) -> float:
    """In seconds."""
    return max(rule.seconds, rule.factor * max(vigil.recent, default=0.0))


def find_hang(vigil: Vigil, rule: HangRule) -> Hang | None:
    limit = limit_of(vigil, rule)
    if not vigil.is_watching or vigil.still_seconds <= limit:
        return None
    watched = {rank: reading for rank, reading in vigil.readings.items() if reading.phase is Phase.WATCHED}
    rank, is_behind = _find_last(watched)
    batches = watched[rank].batches
    newest = max(reading.batches for reading in watched.values())
    return Hang(
        rank=rank,
        batches=batches,
        still_seconds=vigil.still_seconds,
        limit_seconds=limit,
        newest_batches=newest if newest > batches != UNKNOWN else None,
        is_behind=is_behind,
        num_ranks=len(watched),
    )


def _find_last(watched: Mapping[int, Reading]) -> tuple[int, bool]:
    """The rank that is furthest behind, and whether others are ahead of it. In a script only the chief may say how far
    it is; then the others are compared by what they did."""
    counted = {rank: reading for rank, reading in watched.items() if reading.batches != UNKNOWN}
    uncounted = {rank: reading for rank, reading in watched.items() if reading.batches == UNKNOWN}
    for alike in (counted, uncounted):
        last = min(alike, key=lambda rank: (_place(alike[rank]), rank), default=None)
        if last is not None and any(_place(reading) > _place(alike[last]) for reading in alike.values()):
            return last, True
    return min(watched), False


def _place(reading: Reading) -> tuple[int, int]:
    return reading.batches, reading.part
