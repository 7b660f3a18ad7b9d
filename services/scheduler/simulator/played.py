"""PURE: what is left of a trace that was played: for every submission what became of it, and the cluster over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.scheduler.simulator.submission import Submission


@dataclass(frozen=True, slots=True)
class Spell:
    """One allocation: which slots it held, and from when to when."""

    submission_id: str
    slots_by_agent: Mapping[str, int]
    started_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class Answer:
    """One question for the ETA. age_seconds: how long the request had waited at least. eta_at: None when none is."""

    asked_at: float
    age_seconds: float
    eta_at: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one submission."""

    submission: Submission
    started_at: float
    ended_at: float
    num_preemptions: int
    answers: tuple[Answer, ...]

    @property
    def wait_seconds(self) -> float:
        """All the time that it did not get on: before its start, after preemptions, and what these cost it."""
        return self.ended_at - self.submission.submitted_at - self.submission.duration_seconds


@dataclass(frozen=True, slots=True)
class Moment:
    """The cluster from this time on, until the next moment."""

    at: float
    num_waiting: int
    slots_waiting: int
    slots_busy: int


@dataclass(frozen=True, slots=True)
class Head:
    """A request that held the reservation until it started, see head.py.

    promised_at: the start that its first reservation promised. moved_seconds: for how long it was held up by work that
    had overtaken it.
    """

    submission_id: str
    promised_at: float
    started_at: float
    moved_seconds: float

    @property
    def late_seconds(self) -> float:
        """Against its first promise, through whatever cause."""
        return max(0.0, self.started_at - self.promised_at)


@dataclass(frozen=True)
class Played:
    """runs: in the order of submission. refused: what this cluster can never hold. num_slots: of the cluster."""

    num_slots: int
    runs: tuple[Run, ...]
    refused: tuple[Submission, ...]
    spells: tuple[Spell, ...]
    moments: tuple[Moment, ...]
    heads: tuple[Head, ...]
    num_plans: int
