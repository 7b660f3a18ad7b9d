"""PURE: whether a gang hangs, from how far its ranks are, looked at about once a second.

A gang hangs as a whole: ranks wait for one another, so as long as one of them moves on, no rank hangs. The limit grows
with the slowest step that was seen lately, and with the slowest of the first ones for ever: what was compiled then may
be compiled anew later. Until the first completed batch, and while a rank is busy with something that may take long, two
longer limits of the rule hold instead. The caller's clock comes in as the seconds that have passed; a runner that was
held up itself cannot judge, so a long gap between two looks counts as a short one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gangline.domain.beat import UNKNOWN, Phase, Reading, Where
from gangline.domain.failure import HangRule

# Steps by which the slowest recent one is told, and those that count for ever.
NUM_RECENT = 64
NUM_FIRST = 8
MAX_LOOK_SECONDS = 5.0
_COLLECTIVE = "while others wait in a collective that it has not entered"


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
        """Whether the gang is expected to move on: no rank rests for which the last of the others may be waiting."""
        if self.is_starting:
            return False
        last = min((found.batches for found in self._all_in(Phase.WATCHED)), default=None)
        return last is not None and all(found.batches > last for found in self._all_in(Phase.RESTING))

    @property
    def is_starting(self) -> bool:
        """Whether a rank has not completed its first batch."""
        return bool(self._all_in(Phase.STARTING))

    def _all_in(self, phase: Phase) -> list[Reading]:
        """A stopped process does no work that may take long, so it counts as watched."""
        return [reading for reading in self.readings.values() if _effective_phase(reading) is phase]

    @property
    def is_outside(self) -> bool:
        return all(reading.phase is Phase.OUTSIDE for reading in self.readings.values())


@dataclass(frozen=True, slots=True)
class Hang:
    """rank: the one that is furthest behind. reading: its own. newest_batches: of ranks that came further, None when
    none did. lag: what others have done that it has not, empty where all are at the same place. num_ranks: that are
    expected to move on."""

    rank: int
    reading: Reading
    still_seconds: float
    limit_seconds: float
    newest_batches: int | None
    lag: str
    num_ranks: int

    @property
    def batches(self) -> int:
        """Completed, UNKNOWN where the rank never said so."""
        return self.reading.batches

    @property
    def message(self) -> str:
        """One line without the rank's name."""
        place = describe_place(self.reading)
        seconds = f"{self.still_seconds:.0f} s (limit {self.limit_seconds:.0f} s)"
        what = f"hung: it has stood still{place} for {seconds}"
        if self.reading.is_stopped:
            what += "; its process is stopped (SIGSTOP or a debugger)"
        if self.num_ranks == 1:
            return what
        if self.newest_batches is not None:
            return f"{what}, while others reached batch {self.newest_batches}"
        return f"{what}, {self.lag or 'as do all others'}"


def describe_place(reading: Reading) -> str:
    """Where a rank is, as a part of a sentence with a blank before it; empty where nothing is known."""
    if not reading.pid:
        return " before its code began"
    if reading.phase in (Phase.STARTING, Phase.OUTSIDE):
        where = f" in {reading.where.words}" if reading.where.words else ""
        return f"{where} before the first completed batch"
    batches = "" if reading.batches == UNKNOWN else f" after batch {reading.batches}"
    return batches + (f" in {reading.where.words}" if reading.where.words else "")


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
    """Whether the time up to this look belongs to a step. The first one counts from its beginning, although the limit
    of the start holds then: it tells how long a step may take."""
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
    if vigil.is_starting:
        limit = max(limit, rule.start_seconds)
    elif not vigil.is_watching:
        limit = max(limit, rule.rest_seconds)
    if vigil.is_outside or vigil.still_seconds <= limit:
        return None
    expected = _expected(vigil)
    rank, lag = _find_last(expected)
    batches = expected[rank].batches
    newest = max(reading.batches for reading in expected.values())
    return Hang(
        rank=rank,
        reading=expected[rank],
        still_seconds=vigil.still_seconds,
        limit_seconds=limit,
        newest_batches=newest if newest > batches != UNKNOWN else None,
        lag=lag,
        num_ranks=len(expected),
    )


def _effective_phase(reading: Reading) -> Phase:
    return Phase.WATCHED if reading.is_stopped and reading.phase is Phase.RESTING else reading.phase


def _expected(vigil: Vigil) -> dict[int, Reading]:
    """The ranks of which one holds up the gang. Where others start, a rank counts that has not come so far."""

    def is_late(reading: Reading) -> bool:
        return not reading.pid or Where.UNKNOWN < reading.where < Where.DATA

    return {
        rank: reading
        for rank, reading in vigil.readings.items()
        if reading.phase is not Phase.OUTSIDE or (vigil.is_starting and is_late(reading))
    }


def _find_last(expected: Mapping[int, Reading]) -> tuple[int, str]:
    """The rank that is furthest behind, and what others have done that it has not. A stopped process comes first:
    nothing explains better why a rank stands still."""
    stopped = {rank: reading for rank, reading in expected.items() if reading.is_stopped}
    among = stopped or expected
    is_script = any(reading.pid and reading.batches == UNKNOWN for reading in expected.values())
    last, lag = _find_last_in_script(among) if is_script else _find_last_in_training(among)
    return last, "while others wait" if 0 < len(stopped) < len(expected) else lag


def _find_last_in_training(expected: Mapping[int, Reading]) -> tuple[int, str]:
    """Ranks at the same place are told apart by the collectives that they entered."""
    last = min(expected, key=lambda rank: (_place(expected[rank]), _entered(expected[rank]), rank))
    place, entered = _place(expected[last]), _entered(expected[last])
    if any(_place(reading) == place and _entered(reading) > entered for reading in expected.values()):
        return last, _COLLECTIVE
    is_behind = any(_place(reading) > place for reading in expected.values())
    return last, "while others came further" if is_behind else ""


def _find_last_in_script(expected: Mapping[int, Reading]) -> tuple[int, str]:
    """The same collectives are entered by all ranks. Otherwise, as only the chief may say how far it is, the others
    are compared by what they did."""
    worlds = {rank: reading.collectives.world for rank, reading in expected.items()}
    last = min(worlds, key=lambda rank: (worlds[rank], rank))
    if any(entered > worlds[last] for entered in worlds.values()):
        return last, _COLLECTIVE
    counted = {rank: reading for rank, reading in expected.items() if reading.batches != UNKNOWN}
    uncounted = {rank: reading for rank, reading in expected.items() if reading.batches == UNKNOWN}
    for alike in (counted, uncounted):
        last = min(alike, key=lambda rank: (_place(alike[rank]), rank), default=-1)
        if any(_place(reading) > _place(alike[last]) for reading in alike.values()):
            return last, "while others came further"
    return min(expected), ""


def _place(reading: Reading) -> tuple[int, ...]:
    """What all ranks do alike. Before training begins the part counts nothing, but the ranks pass the same places."""
    has_begun = reading.phase in (Phase.WATCHED, Phase.RESTING) or reading.where >= Where.DATA
    return reading.batches, int(Where.DATA if has_begun else reading.where), reading.part


def _entered(reading: Reading) -> tuple[int, ...]:
    """The world's collectives come first: all ranks enter those in the same order."""
    found = reading.collectives
    return found.world, found.others, found.background
