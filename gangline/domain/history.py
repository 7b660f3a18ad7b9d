"""PURE: lines of logs, metrics and progress, as trial runners deliver them and as the gateway stores them; and the
filter by which a reader selects lines.

The fields are those of the messages in ingest.proto and gateway.proto. The CLI and the SDK check a filter before they
send it; the gateway checks it again, because other programs send filters as well.
`services/gateway/history/log_scan.py` carries it out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gangline.domain.state import LogLevel
from gangline.errors import GanglineError, invalid


@dataclass(frozen=True, slots=True)
class LogLine:
    """Holds a line of a log."""

    rank: int | None  # None for lines of the trial runner itself
    agent_id: str  # agent on which it was written
    stream: str  # "stdout", "stderr" or "runner"
    text: str
    level: LogLevel | None = None  # None from runners of earlier versions, which graded no line


@dataclass(frozen=True, slots=True)
class MetricsPoint:
    """Holds metrics of one batch."""

    group: str  # "training", "validation", or any other name under which a trial reports
    batches_completed: int  # batches after which they were reported
    metrics: Mapping[str, float] = field(default_factory=dict)  # numbers by the name of the metric
    values_json: str = ""  # the metrics that are no numbers, as a JSON object by name; empty without any

    @property
    def values(self) -> dict[str, Any]:
        """Returns the metrics that are no numbers: texts, lists and mappings by name. Empty for a text that is no JSON
        object, which no gateway of this version stores."""
        try:
            values = json.loads(self.values_json or "{}")
        except (ValueError, RecursionError):
            return {}
        return values if isinstance(values, dict) else {}


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """Holds a report of progress."""

    batches_completed: int  # batches trained so far
    batches_total: int  # batches to train in all; 0 if unknown
    samples_per_second: float


@dataclass(frozen=True, slots=True)
class StoredLog:
    """Holds a stored log line."""

    id: int  # grows with the order in which rows became visible
    trial_id: str
    at: float  # when it was written
    line: LogLine


@dataclass(frozen=True, slots=True)
class StoredMetrics:
    """Holds stored metrics."""

    id: int  # grows with the order in which rows became visible
    trial_id: str
    at: float  # when they were reported
    point: MetricsPoint
    attempt: int = 0  # attempt of the trial, from 1; 0 if an earlier version stored the row


# A reader's choice of all attempts, in place of the rows that count or of one attempt.
ALL_ATTEMPTS = 0


def check_attempt(attempt: int | None) -> None:
    """Raises GanglineError `metrics.attempt`."""
    if attempt is not None and not ALL_ATTEMPTS <= attempt <= _MOST_RANK:
        raise invalid("metrics.attempt", f"there is no attempt {attempt}; attempts are numbers from 1, and 0 means all")


# The fewest and the most points of a series in one answer.
MIN_SERIES_POINTS = 4
MAX_SERIES_POINTS = 10_000


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """Holds one finite value of a metric."""

    batches_completed: int  # batches after which it was reported
    at: float  # when it was reported
    value: float


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """Holds one metric of a trial, in the order in which it was reported. All values are there, or the first, the last,
    and the least and the greatest of equally long runs of reports."""

    trial_id: str
    group: str  # name under which it was reported
    metric: str
    points: tuple[SeriesPoint, ...] = ()
    num_values: int = 0  # number of reported values
    num_nonfinite: int = 0  # number of values that are infinite or NaN, which are never among the points


def check_series(metric: str, max_points: int) -> None:
    """Checks what a reader of a series asks for. Raises GanglineError `series.*`."""
    if not metric:
        raise invalid("series.metric", 'the name of the metric is missing; give one, such as "loss"')
    if not MIN_SERIES_POINTS <= max_points <= MAX_SERIES_POINTS:
        raise invalid(
            "series.max_points",
            f"max_points is {max_points}; give a number from {MIN_SERIES_POINTS} to {MAX_SERIES_POINTS}",
        )


@dataclass(frozen=True, slots=True)
class Newest:
    """Holds the newest history of one trial; None for each part that it has not reported."""

    progress: ProgressPoint | None = None
    training: MetricsPoint | None = None
    validation: MetricsPoint | None = None
    progress_attempt: int = 0  # attempt that reported the progress; 0 in a history of an earlier version


# The highest rank that the messages and the tables can hold.
_MOST_RANK = 2**31 - 1
# Most entries of a list in a filter. SQLite allows a few thousand bound values in a statement.
_MOST_VALUES = 500
# In characters. Compiling takes time that grows with the pattern.
MOST_PATTERN_LENGTH = 1000
_MOST_AGENT_ID_LENGTH = 200

# Further names under which programs know the levels.
_ALIASES = {
    "WARN": LogLevel.WARNING,
    "ERR": LogLevel.ERROR,
    "CRIT": LogLevel.CRITICAL,
    "FATAL": LogLevel.CRITICAL,
}
_PREFIX = "LOG_LEVEL_"


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Selects the lines that match all parts. A part that is None or empty matches every line."""

    since: float | None = None  # Unix seconds; a line of this very time matches
    until: float | None = None  # Unix seconds; a line of this very time does not match
    ranks: tuple[int, ...] = ()
    levels: tuple[LogLevel, ...] = ()
    agent_ids: tuple[str, ...] = ()
    pattern: str = ""  # a pattern of RE2, found anywhere in the line without its colours


NO_FILTER = LogFilter()


def check_filter(wanted: LogFilter) -> None:
    """Checks everything except the pattern's syntax. Raises GanglineError `logs.*`."""
    for name, seconds in (("since", wanted.since), ("until", wanted.until)):
        if seconds is not None and not math.isfinite(seconds):
            raise invalid("logs.time", f"{name} is {seconds}, which is no time; give seconds since 1970")
    if wanted.since is not None and wanted.until is not None and wanted.since > wanted.until:
        raise invalid("logs.order", "since is later than until, so no line could match; exchange them")
    for rank in wanted.ranks:
        if not isinstance(rank, int) or not 0 <= rank <= _MOST_RANK:
            raise invalid("logs.rank", f"there is no rank {rank!r:.50}; ranks are numbers from 0")
    for agent_id in wanted.agent_ids:
        if not _is_text(agent_id) or not 0 < len(agent_id) <= _MOST_AGENT_ID_LENGTH:
            raise invalid("logs.agent", f"{agent_id!a:.50} is no agent's id; list them with: gangline agent list")
    for name, values in (("ranks", wanted.ranks), ("agents", wanted.agent_ids)):
        _check_number(name, values)
    if not _is_text(wanted.pattern):
        raise invalid("logs.pattern", "the pattern is no text in UTF-8; give a text, from a terminal that uses UTF-8")
    if len(wanted.pattern) > MOST_PATTERN_LENGTH:
        raise invalid(
            "logs.pattern",
            f"the pattern has {len(wanted.pattern)} characters, at most {MOST_PATTERN_LENGTH} are allowed; shorten it",
        )


def parse_level(text: str) -> LogLevel:
    """Returns the level of this name, in upper or lower case, with or without LOG_LEVEL_ in front. Raises
    GanglineError `logs.level`."""
    name = text.strip().upper().removeprefix(_PREFIX)
    if name in _ALIASES:
        return _ALIASES[name]
    try:
        return LogLevel(name)
    except ValueError:
        names = ", ".join(level.value.lower() for level in LogLevel)
        raise invalid("logs.level", f"{text[:50]!r} is no level; use one of {names}") from None


def levels_from(least: LogLevel) -> tuple[LogLevel, ...]:
    """Returns this level and all more severe ones; nothing for the lowest, which every line reaches."""
    levels = tuple(LogLevel)
    return levels[levels.index(least) :] if least is not levels[0] else ()


def check_ranks_exist(ranks: Sequence[int], num_ranks: int, what: str) -> None:
    """Checks that every rank may occur. num_ranks: the most that an attempt can have had. what: the trial or the
    experiment, for the message. Raises GanglineError `logs.rank`."""
    for rank in ranks:
        if rank >= num_ranks:
            last = f"ranks 0 to {num_ranks - 1}" if num_ranks > 1 else "rank 0 only"
            raise GanglineError("logs.rank", f"there is no rank {rank}: {what} has {last}")


def _check_number(name: str, values: Sequence[object]) -> None:
    if len(values) > _MOST_VALUES:
        raise invalid("logs.too_many", f"the filter has {len(values)} {name}, at most {_MOST_VALUES} are allowed")


def _is_text(value: object) -> bool:
    """Returns whether the value is a text without lone surrogates. Bytes that are no UTF-8 become such surrogates in
    the arguments of a program."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)
