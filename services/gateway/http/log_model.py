"""The JSON of logs, of reports and of series of metrics, and the query parameters that select lines.

The parameters have Determined's names and meanings where Determined has the parameter. `level` is ours.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Annotated

import re2
from fastapi import Depends, Query
from pydantic import AwareDatetime, BeforeValidator

from gangline.domain import history
from gangline.domain.history import LogFilter, levels_from, parse_level
from gangline.domain.state import LogLevel
from gangline.errors import invalid
from services.gateway.http.answer import Answer
from services.gateway.http.model import INT64_MAX, Report


def _refuse_number(value: object) -> object:
    """A number would count as seconds since 1970, which the description does not offer."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9.]+", value.strip()):
        raise ValueError("is a number; give a time with a zone, such as 2026-11-28T09:30:00Z")
    return value


ZonedTime = Annotated[AwareDatetime, BeforeValidator(_refuse_number)]


class LogLine(Answer, record=history.LogLine):
    level: LogLevel  # INFO for a line that an earlier version stored


class StoredLog(Answer, record=history.StoredLog, shows="id trial_id time=at line"): ...


class LogPage(Answer):
    """Holds one page. With filters a page may be shorter than its limit, or empty, before the last one."""

    logs: list[StoredLog]
    next_after_id: int | None  # value of afterId for the next page; null if this is the last one by now
    # value of beforeId for the page of older lines; null at the beginning of the log, and without beforeId
    next_before_id: int | None = None


class LogPlace(Answer):
    """Names the place of a time in a log."""

    id: int  # `afterId` = id - 1 gives the lines from there on, and `beforeId` = id the lines before


@dataclass(frozen=True, slots=True)
class LineSelection:
    """The parameters that select lines."""

    tail: Annotated[
        int, Query(ge=0, le=INT64_MAX, description="Only the last so many of the lines that match; 0 for all")
    ] = 0
    rank_ids: Annotated[tuple[int, ...], Query(alias="rankIds", description="Only lines of these ranks")] = ()
    agent_ids: Annotated[tuple[str, ...], Query(alias="agentIds", description="Only lines from these agents")] = ()
    levels: Annotated[
        tuple[str, ...], Query(description="Only lines of these levels, as ERROR or LOG_LEVEL_ERROR")
    ] = ()
    level: Annotated[str, Query(description="Only lines of this level and of more severe ones")] = ""
    timestamp_after: Annotated[
        ZonedTime | None, Query(alias="timestampAfter", description="Only lines of this time or later, with a zone")
    ] = None
    timestamp_before: Annotated[
        ZonedTime | None, Query(alias="timestampBefore", description="Only lines before this time, with a zone")
    ] = None
    search_text: Annotated[
        str, Query(alias="searchText", description="Only lines that contain this text, in upper or lower case")
    ] = ""
    enable_regex: Annotated[
        bool, Query(alias="enableRegex", description="searchText is a pattern of RE2, which minds upper and lower case")
    ] = False

    def to_filter(self) -> LogFilter:
        """Returns the filter. Raises GanglineError `logs.*`."""
        return LogFilter(
            since=_seconds(self.timestamp_after),
            until=_seconds(self.timestamp_before),
            ranks=self.rank_ids,
            levels=self._levels(),
            agent_ids=self.agent_ids,
            pattern=self.search_text if self.enable_regex else _pattern_of(self.search_text),
        )

    def _levels(self) -> tuple[LogLevel, ...]:
        if self.level and self.levels:
            raise invalid("logs.level", "level and levels are both given; give one of them")
        if self.level:
            return levels_from(parse_level(self.level))
        return tuple(dict.fromkeys(map(parse_level, self.levels)))


Selected = Annotated[LineSelection, Depends()]


def _seconds(instant: datetime.datetime | None) -> float | None:
    return None if instant is None else instant.timestamp()


def _pattern_of(text: str) -> str:
    """Returns the pattern that is found where the text is, in upper or lower case."""
    return f"(?i){re2.escape(text)}" if text else ""


class SeriesPoint(Answer, record=history.SeriesPoint, shows="batches_completed time=at value"): ...


class MetricSeries(Answer, record=history.MetricSeries): ...


class StoredMetrics(Answer, record=history.StoredMetrics, shows="id trial_id time=at point attempt"):
    point: Report


class MetricsPage(Answer):
    metrics: list[StoredMetrics]
    next_after_id: int | None  # value of afterId for the next page; null if this is the last one by now
