"""PURE: one row of a trace: a submission, its run time on its slots, and the planner's estimate of that run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from services.scheduler.placement.request.snapshot import DEFAULT_PRIORITY

OUTCOMES = ("completed", "cancelled", "failed")


@dataclass(frozen=True, slots=True)
class TraceSubmission:
    """Describes one submission in a trace."""

    id: str
    submitted_at: float
    slots: int  # at least 1
    duration_seconds: float  # run time on its slots, more than 0
    # run time without a cancellation or failure, which its progress implies; at least duration_seconds
    planned_seconds: float
    priority: int = DEFAULT_PRIORITY
    group: str = ""
    is_preemptible: bool = True
    is_single_agent: bool = False
    outcome: str = "completed"


Estimates = Literal["exact", "none", "progress"]
ESTIMATES: tuple[Estimates, ...] = get_args(Estimates)

# Steps are timed only after the first ones, which are slower because of the warm-up.
REPORT_SECONDS = 60.0


def known_after(estimates: Estimates) -> float | None:
    """Returns how long a run takes until its end is estimated; None for never."""
    return {"exact": 0.0, "none": None, "progress": REPORT_SECONDS}[estimates]


def estimated_run_seconds(
    submission: TraceSubmission, estimates: Estimates, done_seconds: float, restart: float
) -> float:
    """Estimates the run time of a waiting request; 0 when unknown. done_seconds: time that it has run already. restart:
    the cost of beginning again."""
    if estimates == "exact":
        return submission.duration_seconds - done_seconds + restart
    if estimates == "progress" and done_seconds >= REPORT_SECONDS:
        return submission.planned_seconds - done_seconds + restart
    return 0.0


def estimated_end_at(submission: TraceSubmission, estimates: Estimates, at: float, done_seconds: float) -> float:
    """Estimates the end of a run; 0 when unknown. at: when it had run for done_seconds."""
    if estimates == "none":
        return 0.0
    total = submission.duration_seconds if estimates == "exact" else submission.planned_seconds
    return at + total - done_seconds
