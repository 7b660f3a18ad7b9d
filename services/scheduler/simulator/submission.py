"""PURE: one row of a trace: what a user submitted, and how long it ran on its slots."""

from __future__ import annotations

from dataclasses import dataclass

from services.scheduler.placement.snapshot import DEFAULT_PRIORITY

OUTCOMES = ("completed", "cancelled", "failed")


@dataclass(frozen=True, slots=True)
class Submission:
    """Describes one submission. slots: at least 1. duration_seconds: on its slots, more than 0. planned_seconds: the
    run time without a cancellation or failure, which its progress implies; never less than the duration."""

    id: str
    submitted_at: float
    slots: int
    duration_seconds: float
    planned_seconds: float
    priority: int = DEFAULT_PRIORITY
    group: str = ""
    is_preemptible: bool = True
    is_single_agent: bool = False
    outcome: str = "completed"
