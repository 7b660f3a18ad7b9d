"""PURE: whether a gang hangs, from the progress of its ranks, read about once a second.

A gang hangs as a whole: ranks wait for one another, so while one of them progresses, no rank hangs. The limit grows
with the slowest recent step. It also grows with the slowest of the first steps, without end: code that was compiled
then may be compiled again later.
Two longer limits of the rule hold instead until the first completed batch, and while a rank does work that may take
long. The caller passes the seconds since the last reading. A runner that was delayed itself cannot judge, so a long gap
between two readings counts as a short one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gangline.domain.beat import UNKNOWN, Phase, Reading, Where
from gangline.domain.failure import HangRule

# Number of recent steps whose slowest one sets the limit.
NUM_RECENT = 64
# Number of first steps whose slowest one sets the limit for the whole attempt.
NUM_FIRST = 8
# Cap in seconds on the time that one reading adds: after a longer gap the runner itself was delayed, perhaps with its
# ranks.
MAX_LOOK_SECONDS = 5.0
_WAITING = "while others wait"
_COLLECTIVE = "while others wait in a collective that it has not entered"


@dataclass(frozen=True, slots=True)
class ProgressWatch:
    """The watchdog's state between two readings. All durations are in seconds."""

    readings: Mapping[int, Reading] = field(default_factory=dict)
    still_seconds: float = 0.0  # time since a rank last progressed
    step_seconds: float = 0.0  # duration of the current step up to that moment
    longest_seconds: float = 0.0  # the longest time without progress within the current step
    recent: tuple[float, ...] = ()  # durations of the last steps
    first_seconds: float = 0.0  # duration of the slowest of the first num_first steps
    num_first: int = 0
    has_stepped: bool = False  # whether any rank has ever completed a batch

    @property
    def is_watching(self) -> bool:
        """Whether the gang is expected to progress: no rank rests for which the last of the others may be waiting."""
        if self.is_starting:
            return False
        last = min((reading.batches for reading in self._all_in(Phase.WATCHED)), default=None)
        return last is not None and all(reading.batches > last for reading in self._all_in(Phase.RESTING))

    @property
    def is_starting(self) -> bool:
        """Whether a rank has not completed its first batch."""
        return bool(self._all_in(Phase.STARTING))

    def _all_in(self, phase: Phase) -> list[Reading]:
        """Returns the readings in this phase. A stopped process does no work that may take long, so it counts as
        watched."""
        return [reading for reading in self.readings.values() if _effective_phase(reading) is phase]

    @property
    def is_outside(self) -> bool:
        return all(reading.phase is Phase.OUTSIDE for reading in self.readings.values())


@dataclass(frozen=True, slots=True)
class Hang:
    """The finding that the gang hangs, with the numbers of the message."""

    rank: int  # the rank that is furthest behind, to which `reading` belongs
    reading: Reading
    still_seconds: float
    limit_seconds: float
    newest_batches: int | None  # batches of the ranks that are further ahead; None if no rank is
    lag: str  # what other ranks have done that this one has not; empty if all are at the same place
    num_ranks: int  # number of ranks that are expected to progress

    @property
    def batches(self) -> int:
        """The batches that the rank completed; UNKNOWN if it never reported a number."""
        return self.reading.batches

    @property
    def message(self) -> str:
        """The finding in one line, without the rank's name."""
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
    """Returns the place of a rank as a part of a sentence that begins with a blank; empty if nothing is known."""
    if not reading.pid:
        return " before its code began"
    if reading.phase in (Phase.STARTING, Phase.OUTSIDE):
        where = f" in {reading.where.words}" if reading.where.words else ""
        return f"{where} before the first completed batch"
    batches = "" if reading.batches == UNKNOWN else f" after batch {reading.batches}"
    return batches + (f" in {reading.where.words}" if reading.where.words else "")


def look(watch: ProgressWatch, readings: Mapping[int, Reading], passed_seconds: float) -> ProgressWatch:
    """Returns the state after one more reading.

    readings: the readings of the living ranks, by rank. passed_seconds: time since the last call.
    """
    still = watch.still_seconds + min(passed_seconds, MAX_LOOK_SECONDS)
    if dict(readings) == dict(watch.readings):
        return replace(watch, still_seconds=0.0 if watch.is_outside else still)
    has_stepped = watch.has_stepped or any(reading.phase is Phase.WATCHED for reading in readings.values())
    looked = replace(watch, readings=dict(readings), still_seconds=0.0, has_stepped=has_stepped)
    if _is_measured(watch, readings):
        step, longest = watch.step_seconds + still, max(watch.longest_seconds, still)
        looked = replace(looked, step_seconds=step, longest_seconds=longest)
    return _end_step(looked, watch) if _front(readings) > _front(watch.readings) else looked


def _is_measured(watch: ProgressWatch, readings: Mapping[int, Reading]) -> bool:
    """Whether the time up to this reading belongs to a step.

    The first step counts from its beginning, although the limit of the start holds then: its duration shows how long a
    step may take.
    """
    if all(watch.readings.get(rank, reading) == reading for rank, reading in readings.items()):
        return False
    has_begun = any(reading.part for reading in watch.readings.values())
    return watch.is_watching or (has_begun and not (watch.has_stepped or watch.is_outside))


def _end_step(watch: ProgressWatch, before: ProgressWatch) -> ProgressWatch:
    """Returns the state after a completed batch. If the time since the last batch is not that of a step, the longest
    time without progress counts instead."""
    is_broken = any(reading.is_broken for reading in before.readings.values())
    seconds = watch.longest_seconds if is_broken else watch.step_seconds
    ended = replace(watch, step_seconds=0.0, longest_seconds=0.0)
    if not seconds:
        return ended
    ended = replace(ended, recent=(*watch.recent, seconds)[-NUM_RECENT:])
    if watch.num_first == NUM_FIRST:
        return ended
    return replace(ended, first_seconds=max(watch.first_seconds, seconds), num_first=watch.num_first + 1)


def _front(readings: Mapping[int, Reading]) -> int:
    """Returns the batches of the rank that is furthest ahead."""
    return max((reading.batches for reading in readings.values()), default=UNKNOWN)


def limit_of(watch: ProgressWatch, rule: HangRule) -> float:
    """Returns the time without progress, in seconds, after which a watched gang counts as hung."""
    slowest = max(watch.first_seconds, watch.longest_seconds, *watch.recent, 0.0)
    return max(rule.seconds, rule.factor * slowest)


def find_hang(watch: ProgressWatch, rule: HangRule) -> Hang | None:
    """Returns the hang, or None while the time without progress is within the limit of the current phase."""
    limit = limit_of(watch, rule)
    if watch.is_starting:
        limit = max(limit, rule.start_seconds)
    elif not watch.is_watching:
        limit = max(limit, rule.rest_seconds)
    if watch.is_outside or watch.still_seconds <= limit:
        return None
    expected = _expected(watch)
    rank, lag = _find_last(expected)
    batches = expected[rank].batches
    newest = max(reading.batches for reading in expected.values())
    return Hang(
        rank=rank,
        reading=expected[rank],
        still_seconds=watch.still_seconds,
        limit_seconds=limit,
        newest_batches=newest if newest > batches != UNKNOWN else None,
        lag=lag,
        num_ranks=len(expected),
    )


def _effective_phase(reading: Reading) -> Phase:
    return Phase.WATCHED if reading.is_stopped and reading.phase is Phase.RESTING else reading.phase


def _expected(watch: ProgressWatch) -> dict[int, Reading]:
    """Returns the ranks that can hold up the gang. While other ranks start, a rank counts that has not reached the same
    place."""

    def is_late(reading: Reading) -> bool:
        return not reading.pid or Where.UNKNOWN < reading.where < Where.DATA

    return {
        rank: reading
        for rank, reading in watch.readings.items()
        if reading.phase is not Phase.OUTSIDE or (watch.is_starting and is_late(reading))
    }


def _find_last(expected: Mapping[int, Reading]) -> tuple[int, str]:
    """Returns the rank that is furthest behind, and what others have done that it has not.

    A stopped process takes precedence: it is the best explanation of why a rank makes no progress.
    """
    stopped = {rank: reading for rank, reading in expected.items() if reading.is_stopped}
    among = stopped or expected
    is_script = any(reading.pid and reading.batches == UNKNOWN for reading in expected.values())
    last, lag = _find_last_in_script(among) if is_script else _find_last_in_training(among)
    return last, _WAITING if 0 < len(stopped) < len(expected) else lag


def _find_last_in_training(expected: Mapping[int, Reading]) -> tuple[int, str]:
    """Compares ranks at the same place. Where some wait for others and some compute, as stages of a pipeline do, it is
    one that computes; otherwise the one that entered the fewest collectives."""
    earliest = min(map(_place, expected.values()))
    behind = {rank: reading for rank, reading in expected.items() if _place(reading) == earliest}
    computing = {rank: reading for rank, reading in behind.items() if reading.where is not Where.EXCHANGE}
    if 0 < len(computing) < len(behind):
        return min(computing), _WAITING
    last = min(behind, key=lambda rank: (_entered(behind[rank]), rank))
    if any(_entered(reading) > _entered(behind[last]) for reading in behind.values()):
        return last, _COLLECTIVE
    return last, "while others came further" if len(behind) < len(expected) else ""


def _find_last_in_script(expected: Mapping[int, Reading]) -> tuple[int, str]:
    """Compares ranks of a script first by the collectives, which all ranks enter alike. Otherwise it compares the ranks
    that count batches with one another, and the others likewise, because only the chief may report its progress."""
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
    """Returns what can be compared between all ranks. Before training begins the part has no meaning, but the ranks
    pass the same places."""
    has_begun = reading.phase in (Phase.WATCHED, Phase.RESTING) or reading.where >= Where.DATA
    return reading.batches, int(Where.DATA if has_begun else reading.where), reading.part


def _entered(reading: Reading) -> tuple[int, ...]:
    """Returns the numbers of collectives that the rank entered. The world's come first, because all ranks enter those
    in the same order."""
    counts = reading.collectives
    return counts.world, counts.others, counts.background
