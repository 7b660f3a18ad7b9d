"""The options and the answers of a stream of log lines: makes the filter of a call, and reads the lines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypedDict

from gangline.client.record import LogEntry
from gangline.domain.history import LogFilter, check_filter, levels_from, parse_level
from gangline.domain.state import LogLevel
from gangline.errors import invalid
from gangline.protocol.wire import enum_member
from gangline.v1.gateway_pb2 import StoredLog


class LogOptions(TypedDict, total=False):
    """Selects log entries that match all of these. since, until: a time or Unix seconds; an entry of the time `until`
    does not match. ranks, agents: empty for all. level: the least one, such as "warning". pattern: of RE2, found
    anywhere in the text."""

    since: datetime | float | None
    until: datetime | float | None
    ranks: Sequence[int] | int
    level: LogLevel | str
    agents: Sequence[str] | str
    pattern: str


def log_entry(stored: StoredLog) -> LogEntry:
    """Maps the message field by field: the general mapping takes several times as long, and a log may be very long."""
    line = stored.line
    rank = line.rank if line.HasField("rank") else None
    level = enum_member(LogLevel, line.level) or LogLevel.INFO
    return LogEntry(stored.id, stored.trial_id, stored.at, line.text, rank, line.agent_id, line.stream, level)


def log_filter(
    *,
    since: datetime | float | None,
    until: datetime | float | None,
    ranks: Sequence[int] | int,
    level: LogLevel | str,
    agents: Sequence[str] | str,
    pattern: str,
) -> LogFilter:
    """Returns the checked filter. Raises GanglineError `logs.*`."""
    levels = levels_from(parse_level(str(level))) if level else ()
    agents = (agents,) if isinstance(agents, str) else agents
    ranks = (ranks,) if isinstance(ranks, int) else ranks
    wanted = LogFilter(_seconds("since", since), _seconds("until", until), tuple(ranks), levels, tuple(agents), pattern)
    check_filter(wanted)
    return wanted


def _seconds(name: str, time: datetime | float | None) -> float | None:
    """Returns Unix seconds. A time without a zone is one of this machine's zone."""
    if time is None:
        return None
    try:
        return time.timestamp() if isinstance(time, datetime) else float(time)
    except (ValueError, OverflowError, OSError, TypeError):
        raise invalid("logs.time", f"{name} is {str(time)[:50]!r}; give a datetime or seconds since 1970") from None
