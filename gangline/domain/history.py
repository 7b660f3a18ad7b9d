"""PURE: lines of logs, metrics and progress, as trial runners deliver them and as the gateway stores them.

The fields are those of the messages in ingest.proto and gateway.proto.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gangline.domain.state import LogLevel


@dataclass(frozen=True, slots=True)
class LogLine:
    """Holds a line of a log. rank: None for lines of the trial runner itself. stream: "stdout", "stderr" or "runner".
    level: None from runners of earlier versions, which graded no line."""

    rank: int | None
    agent_id: str
    stream: str
    text: str
    level: LogLevel | None = None


@dataclass(frozen=True, slots=True)
class MetricsPoint:
    """Holds metrics of one batch. group: "training", "validation", or any other name that a trial reports under."""

    group: str
    batches_completed: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """Holds a report of progress. batches_total: 0 when unknown."""

    batches_completed: int
    batches_total: int
    samples_per_second: float


@dataclass(frozen=True, slots=True)
class StoredLog:
    """Holds a stored log line. id: grows with the order in which rows became visible."""

    id: int
    trial_id: str
    at: float
    line: LogLine


@dataclass(frozen=True, slots=True)
class StoredMetrics:
    """Holds stored metrics. id: as for `StoredLog`."""

    id: int
    trial_id: str
    at: float
    point: MetricsPoint


@dataclass(frozen=True, slots=True)
class Newest:
    """Holds the newest history of one trial; None for each part that it has not reported."""

    progress: ProgressPoint | None = None
    training: MetricsPoint | None = None
    validation: MetricsPoint | None = None
