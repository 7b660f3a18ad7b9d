"""PURE: the figures of a played trace: waits by size of gang, use of the cluster, errors of the ETA."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from services.scheduler.simulator.played import Played, Run

SIZE_CLASSES: tuple[tuple[str, int], ...] = (("1", 1), ("2-8", 8), ("9-64", 64), ("65+", 1 << 62))
"""Name of the class and the most slots in it."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Holds waits in seconds; see Run.wait_seconds."""

    count: int
    mean: float
    p95: float
    longest: float


@dataclass(frozen=True, slots=True)
class EtaError:
    """Holds the errors of the ETAs given at one age."""

    age_seconds: float
    count: int
    unanswered: int  # number of requests that had no ETA
    median: float | None  # distance between the ETA and the start, relative to the remaining wait; None without an ETA


@dataclass(frozen=True, slots=True)
class HeadFigures:
    """Counts requests that held the reservation and started."""

    count: int
    moved: int  # number of requests that backfill delayed
    moved_seconds: float  # the longest such delay
    late: int  # number of requests that started after their first promise, for any cause


@dataclass(frozen=True, slots=True)
class Figures:
    """Holds the figures of one strategy."""

    strategy: str
    submissions: int
    refused: int
    waits: Waits
    waits_by_size: dict[str, Waits]
    utilisation: float  # busy slots over all slots, from the first submission to the last
    makespan_seconds: float  # time from the first submission to the last end
    longest_queue: int
    preemptions: int
    head: HeadFigures | None  # None if the order is not fixed
    eta_errors: tuple[EtaError, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def figures_of(name: str, played: Played, has_head: bool) -> Figures:
    """Computes the figures. played: must have at least one run."""
    first, last = played.runs[0].submission.submitted_at, played.runs[-1].submission.submitted_at
    end = max(run.ended_at for run in played.runs)
    heads = played.heads
    return Figures(
        strategy=name,
        submissions=len(played.runs),
        refused=len(played.refused),
        waits=_waits(played.runs),
        waits_by_size=_waits_by_size(played.runs),
        utilisation=utilisation(played, first, last if last > first else end),
        makespan_seconds=end - first,
        longest_queue=max((moment.num_waiting for moment in played.moments), default=0),
        preemptions=sum(run.num_preemptions for run in played.runs),
        head=HeadFigures(
            count=len(heads),
            moved=sum(1 for head in heads if head.moved_seconds > 0),
            moved_seconds=max((head.moved_seconds for head in heads), default=0.0),
            late=sum(1 for head in heads if head.late_seconds > 1e-3),
        )
        if has_head
        else None,
        eta_errors=_eta_errors(played.runs),
    )


def utilisation(played: Played, start: float, end: float) -> float:
    """Returns the share of slots that was busy between two times."""
    busy = sum(
        moment.slots_busy * max(0.0, min(later.at, end) - max(moment.at, start))
        for moment, later in pairwise(played.moments)
    )
    return busy / (played.num_slots * (end - start))


def size_class(slots: int) -> str:
    return next(name for name, most in SIZE_CLASSES if slots <= most)


def _waits_by_size(runs: Iterable[Run]) -> dict[str, Waits]:
    by_size: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_size[size_class(run.submission.slots)].append(run)
    return {name: _waits(by_size[name]) for name, _ in SIZE_CLASSES if name in by_size}


def _waits(runs: Sequence[Run]) -> Waits:
    """Summarises waits. p95 is the nearest rank."""
    # The wait of a run that was never delayed may be below 0 by a rounding error.
    waits = sorted(max(0.0, run.wait_seconds) for run in runs)
    return Waits(len(waits), fmean(waits), waits[math.ceil(0.95 * len(waits)) - 1], waits[-1])


def _eta_errors(runs: Iterable[Run]) -> tuple[EtaError, ...]:
    errors: dict[float, list[float]] = defaultdict(list)
    unanswered: dict[float, int] = defaultdict(int)
    for run in runs:
        for answer in run.answers:
            left = run.started_at - answer.asked_at
            if left <= 0:
                continue  # it started at the very instant of the question, so there was no wait to be wrong about
            if answer.eta_at is None:
                unanswered[answer.age_seconds] += 1
            else:
                errors[answer.age_seconds].append(abs(answer.eta_at - run.started_at) / left)
    ages = sorted({*errors, *unanswered})
    return tuple(
        EtaError(age, len(errors[age]), unanswered[age], median(errors[age]) if errors[age] else None) for age in ages
    )
