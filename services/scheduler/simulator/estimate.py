"""PURE: what the planner is told about run times, while the trace itself knows them to the second.

exact: everything, of whoever waits too. none: nothing. progress: as a live scheduler knows it: nothing at first, and
from its first report of progress on the planned end, which is wrong for what will be cancelled or fail; the rest of a
request that was preempted is known as well.
"""

from __future__ import annotations

from typing import Literal, get_args

from services.scheduler.simulator.submission import Submission

Estimates = Literal["exact", "none", "progress"]
ESTIMATES: tuple[Estimates, ...] = get_args(Estimates)

# Steps are timed once the first have warmed everything up.
REPORT_SECONDS = 60.0


def known_after(estimates: Estimates) -> float | None:
    """How long something has to run until its end is estimated; None for never."""
    return {"exact": 0.0, "none": None, "progress": REPORT_SECONDS}[estimates]


def estimated_run_seconds(submission: Submission, estimates: Estimates, done_seconds: float, restart: float) -> float:
    """Of one that waits; 0 when unknown. done_seconds: what it has run already. restart: what beginning again costs."""
    if estimates == "exact":
        return submission.duration_seconds - done_seconds + restart
    if estimates == "progress" and done_seconds >= REPORT_SECONDS:
        return submission.planned_seconds - done_seconds + restart
    return 0.0


def estimated_end_at(submission: Submission, estimates: Estimates, at: float, done_seconds: float) -> float:
    """Of one that runs. at: when it had run for done_seconds. 0 when unknown."""
    if estimates == "none":
        return 0.0
    total = submission.duration_seconds if estimates == "exact" else submission.planned_seconds
    return at + total - done_seconds
