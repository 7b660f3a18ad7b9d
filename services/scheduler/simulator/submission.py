"""PURE: one row of a trace: what somebody submitted, and how long it ran when it had its slots."""

from __future__ import annotations

from dataclasses import dataclass

from services.scheduler.placement.snapshot import DEFAULT_PRIORITY

OUTCOMES = ("completed", "cancelled", "failed")


@dataclass(frozen=True, slots=True)
class Submission:
    """slots: at least 1. duration_seconds: on its slots, more than 0. planned_seconds: how long it would have run had
    nobody cancelled it and nothing failed, which is what its progress tells; never less than the duration."""

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
