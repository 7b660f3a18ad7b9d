"""PURE: the record of a played trace: the course of every submission, and the cluster over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.scheduler.simulator.submission import TraceSubmission


@dataclass(frozen=True, slots=True)
class Spell:
    """Records one allocation: the slots it held, and from when to when."""

    submission_id: str
    slots_by_agent: Mapping[str, int]
    started_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class EtaAnswer:
    """Records one question for the ETA."""

    asked_at: float
    age_seconds: float  # the least time that the request had waited
    eta_at: float | None  # None if there was no ETA


@dataclass(frozen=True, slots=True)
class Run:
    """Records the course of one submission."""

    submission: TraceSubmission
    started_at: float
    ended_at: float
    num_preemptions: int
    answers: tuple[EtaAnswer, ...]

    @property
    def wait_seconds(self) -> float:
        """Returns all the time without progress: before its start, after preemptions, and the work lost to these."""
        return self.ended_at - self.submission.submitted_at - self.submission.duration_seconds


@dataclass(frozen=True, slots=True)
class ClusterMoment:
    """Describes the cluster from this time until the next moment."""

    at: float
    num_waiting: int
    slots_busy: int


@dataclass(frozen=True, slots=True)
class Head:
    """Records a request that held the reservation until it started, see head.py."""

    submission_id: str
    promised_at: float  # the start that its first reservation promised
    started_at: float
    moved_seconds: float  # time by which work that had overtaken it delayed it

    @property
    def late_seconds(self) -> float:
        """Returns the delay against the first promise, for any cause."""
        return max(0.0, self.started_at - self.promised_at)


@dataclass(frozen=True)
class Played:
    """Holds a played trace."""

    num_slots: int  # slots of the cluster
    runs: tuple[Run, ...]  # in the order of submission
    refused: tuple[TraceSubmission, ...]  # submissions that this cluster can never hold
    spells: tuple[Spell, ...]
    moments: tuple[ClusterMoment, ...]
    heads: tuple[Head, ...]
