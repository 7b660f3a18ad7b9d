"""PURE: the SDK's records that no message of the gateway has in this shape: a log line, and a created experiment; and
how the SDK reports the progress of work that may take long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from gangline.domain.experiment import Checkpoint, Experiment
from gangline.domain.state import LogLevel
from gangline.domain.view import ExperimentView

if TYPE_CHECKING:
    from datetime import datetime

OnProgress = Callable[[str, int, int], None]
"""Called with the name of the work, the bytes that are done, and all bytes; 0 where these are not known. Calls may come
from another thread, and the last one of a work has all bytes done."""

OnView = Callable[[ExperimentView], object]
"""Called with an experiment's view now and after each change."""


@dataclass(frozen=True, slots=True)
class Created:
    """A new experiment."""

    experiment: Experiment
    # warnings of the client and the cluster about settings that are not carried out as written
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportedCheckpoint:
    """A checkpoint in the cluster's storage."""

    checkpoint: Checkpoint
    is_new: bool  # False if the same content was imported before


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line of a log."""

    id: int  # grows within an experiment
    trial_id: str
    at: float
    text: str
    rank: int | None = None  # None for lines of the trial runner
    agent_id: str = ""
    stream: str = "stdout"  # stdout, stderr or runner
    level: LogLevel = LogLevel.INFO  # INFO also for lines from versions that graded no line


def ignore_progress(work: str, num_bytes: int, total_bytes: int) -> None:
    """Reports nothing."""


def ignore_view(view: ExperimentView) -> None:
    """Reports nothing."""


class LogOptions(TypedDict, total=False):
    """Selects log entries that match all of these."""

    since: datetime | float | None  # a time or Unix seconds
    until: datetime | float | None  # a time or Unix seconds; an entry of this very time does not match
    ranks: Sequence[int] | int  # empty for all
    level: LogLevel | str  # the lowest level that matches, such as "warning"
    agents: Sequence[str] | str  # empty for all
    pattern: str  # a pattern of RE2, found anywhere in the text
