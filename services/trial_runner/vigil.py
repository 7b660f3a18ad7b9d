"""PURE: whether a gang hangs, from how far its ranks are, looked at about once a second.

A gang hangs as a whole: ranks wait for one another, so as long as one of them moves on, or is busy with something that
may take long, nobody hangs. The limit grows with the slowest step that was seen lately, and with the slowest of the
first ones for ever: what was compiled then may be compiled anew later. The caller's clock comes in as the seconds that
have passed; a runner that was held up itself cannot judge, so a long gap between two looks counts as a
short one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gangline.domain.beat import UNKNOWN, Phase, Reading
from gangline.domain.failure import HangRule

# Steps by which the slowest recent one is told, and those that count for ever.
NUM_RECENT = 64
NUM_FIRST = 8
MAX_LOOK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Vigil:
    """still_seconds: since a rank moved on. step_seconds: of the step under way up to then. longest_seconds: the
    longest stand in it. recent: how long the last steps took, in seconds. first_seconds: the slowest of the first
    num_first ones. has_stepped: whether any rank has ever completed a batch."""

    readings: Mapping[int, Reading] = field(default_factory=dict)
    still_seconds: float = 0.0
    step_seconds: float = 0.0
    longest_seconds: float = 0.0
    recent: tuple[float, ...] = ()
    first_seconds: float = 0.0
    num_first: int = 0
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
    has_stepped = vigil.has_stepped or any(reading.phase is Phase.WATCHED for reading in readings.values())
    found = replace(vigil, readings=dict(readings), still_seconds=0.0, has_stepped=has_stepped)
    if _is_measured(vigil, readings):
        step, longest = vigil.step_seconds + still, max(vigil.longest_seconds, still)
        found = replace(found, step_seconds=step, longest_seconds=longest)
    return _end_step(found, vigil) if _front(readings) > _front(vigil.readings) else found


def _is_measured(vigil: Vigil, readings: Mapping[int, Reading]) -> bool:
    """Whether the time up to this look belongs to a step. Before the first one is complete nothing is held against
    anybody, but from its beginning it tells how long a step may take."""
    if all(vigil.readings.get(rank, reading) == reading for rank, reading in readings.items()):
        return False
    has_begun = any(reading.part for reading in vigil.readings.values())
    return vigil.is_watching or (has_begun and not (vigil.has_stepped or vigil.is_outside))


def _end_step(vigil: Vigil, before: Vigil) -> Vigil:
    """A batch is complete. Where the time since the last one is not that of a step, its longest stand counts."""
    is_broken = any(reading.is_broken for reading in before.readings.values())
    seconds = vigil.longest_seconds if is_broken else vigil.step_seconds
    ended = replace(vigil, step_seconds=0.0, longest_seconds=0.0)
    if not seconds:
        return ended
    ended = replace(ended, recent=(*vigil.recent, seconds)[-NUM_RECENT:])
    if vigil.num_first == NUM_FIRST:
        return ended
    return replace(ended, first_seconds=max(vigil.first_seconds, seconds), num_first=vigil.num_first + 1)


def _front(readings: Mapping[int, Reading]) -> int:
    """How far the furthest rank is."""
    return max((reading.batches for reading in readings.values()), default=UNKNOWN)


def limit_of(vigil: Vigil, rule: HangRule) -> float:
    """In seconds."""
    slowest = max(vigil.first_seconds, vigil.longest_seconds, *vigil.recent, 0.0)
    return max(rule.seconds, rule.factor * slowest)


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
