"""PURE: the SDK's records that no message of the gateway has in this shape: a log line, and a created experiment."""

from __future__ import annotations

from dataclasses import dataclass

from gangline.domain.experiment import Experiment
from gangline.domain.history import StoredLog


@dataclass(frozen=True, slots=True)
class Created:
    """warnings: about settings that are not carried out as written, from the client and from the cluster."""

    experiment: Experiment
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogEntry:
    """id grows within an experiment. rank is None for lines of the trial runner. stream: stdout, stderr or runner."""

    id: int
    trial_id: str
    at: float
    text: str
    rank: int | None = None
    agent_id: str = ""
    stream: str = "stdout"


def log_entry(stored: StoredLog) -> LogEntry:
    line = stored.line
    return LogEntry(stored.id, stored.trial_id, stored.at, line.text, line.rank, line.agent_id, line.stream)
