"""Reads the log rows that match a filter, in steps of bounded work.

The database applies every part of the filter except the pattern. The pattern is searched for in the rows that are left,
in the reader's thread; RE2 releases Python's global lock meanwhile. A step examines at most SCAN_ROWS rows of the scope
and ends after SCAN_SECONDS, so a rare match neither keeps a reading thread from other callers nor stops a stream. Each
step reports how far it has read, and the next one starts there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from gangline.domain.history import NO_FILTER, LogFilter, LogLine, StoredLog
from gangline.domain.state import LogLevel
from gangline.printable import without_style
from services.gateway.history import table
from services.gateway.mirror.ingest_record import Scope

# Rows of the scope that one step examines, matching or not.
SCAN_ROWS = 5000
# Rows with their texts that are in memory at a time; a text may have 64 KB.
FETCH_ROWS = 500
# Time after which a step with a pattern ends. A search in one row is not interrupted.
SCAN_SECONDS = 0.2

_COLUMNS = tuple(table.logs.c[name] for name in ("id", "trial_id", "at", "rank", "agent_id", "stream", "text", "level"))

Matcher = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class LogQuery:
    """A checked filter."""

    filter: LogFilter = NO_FILTER
    matches: Matcher | None = None  # searches a text for the filter's pattern; None without one

    @property
    def is_selective(self) -> bool:
        return self.filter != NO_FILTER


ALL_LINES = LogQuery()


@dataclass(frozen=True, slots=True)
class LogPage:
    """Holds the matching rows that one step found, oldest first."""

    rows: list[StoredLog] = field(default_factory=list)
    last_id: int = 0  # every matching row up to this id is in this page or in an earlier one
    is_last: bool = False  # no further row was stored when the step began


@dataclass(frozen=True, slots=True)
class TailStep:
    """Reports one step backwards."""

    num_matches: int
    before_id: int  # all rows from this id on are examined
    first_id: int | None  # the oldest row that matches so far; None if none does
    is_done: bool


def scan_forward(connection: sa.Connection, scope: Scope, query: LogQuery, after_id: int, limit: int) -> LogPage:
    """Returns the next matching rows with a greater id, at most `limit`."""
    in_reach = [*in_scope(table.logs, scope), table.logs.c.id > after_id]
    if not query.is_selective:
        rows = [_stored(row) for row in _fetch(connection, in_reach, limit)]
        return LogPage(rows, rows[-1].id if rows else after_id, is_last=len(rows) < limit)
    num_rows, end_id = _window(connection, in_reach, is_backward=False)
    if not num_rows:
        return LogPage([], after_id, is_last=True)
    deadline = time.monotonic() + SCAN_SECONDS
    conditions = [*in_scope(table.logs, scope), *_conditions(query.filter), table.logs.c.id <= end_id]
    matching: list[StoredLog] = []
    for row in _fetch_all(connection, conditions, after_id):
        if query.matches is None or query.matches(without_style(row.text)):
            matching.append(_stored(row))
        if len(matching) == limit or (query.matches is not None and time.monotonic() > deadline):
            return LogPage(matching, row.id)
    return LogPage(matching, end_id, is_last=num_rows < SCAN_ROWS)


def scan_backward(
    connection: sa.Connection, scope: Scope, query: LogQuery, before: TailStep, num_lines: int
) -> TailStep:
    """Goes on towards older rows until so many match. before: the previous step."""
    logs = table.logs
    in_reach = [*in_scope(logs, scope), logs.c.id < before.before_id]
    num_rows, end_id = _window(connection, in_reach, is_backward=True)
    if not num_rows:
        return TailStep(before.num_matches, before.before_id, before.first_id, is_done=True)
    deadline = time.monotonic() + SCAN_SECONDS
    conditions = [*in_scope(logs, scope), *_conditions(query.filter), logs.c.id >= end_id]
    num_matches, first_id = before.num_matches, before.first_id
    for row_id, is_match in _walk_back(connection, conditions, query, before.before_id):
        if is_match:
            num_matches, first_id = num_matches + 1, row_id
        if num_matches == num_lines:
            return TailStep(num_matches, row_id, first_id, is_done=True)
        if query.matches is not None and time.monotonic() > deadline:
            return TailStep(num_matches, row_id, first_id, is_done=False)
    return TailStep(num_matches, end_id, first_id, is_done=num_rows < SCAN_ROWS)


def newest_id(connection: sa.Connection, scope: Scope) -> int:
    """Returns the id of the scope's newest row; 0 when it has none."""
    logs = table.logs
    newest = sa.select(logs.c.id).where(*in_scope(logs, scope)).order_by(logs.c.id.desc()).limit(1)
    return connection.scalar(newest) or 0


def find_tail(connection: sa.Connection, scope: Scope, num_lines: int) -> int:
    """Returns the id after which exactly the last so many rows of the scope come."""
    logs = table.logs
    before_tail = connection.scalar(
        sa.select(logs.c.id).where(*in_scope(logs, scope)).order_by(logs.c.id.desc()).offset(num_lines).limit(1)
    )
    return before_tail or 0


def find_time(connection: sa.Connection, scope: Scope, at: float) -> int:
    """Returns the id of the first row of this time or later; beyond the newest row if there is none.

    It halves the range of ids, which takes some 40 look-ups. Ranks deliver their lines in groups, so neighbours may be
    out of order by the length of a group.
    """
    logs = table.logs
    first_id, end_id = 1, newest_id(connection, scope) + 1
    while first_id < end_id:
        middle_id = (first_id + end_id) // 2
        row = connection.execute(
            sa.select(logs.c.id, logs.c.at)
            .where(*in_scope(logs, scope), logs.c.id >= middle_id)
            .order_by(logs.c.id)
            .limit(1)
        ).one_or_none()
        if row is None or row.at >= at:
            end_id = middle_id
        else:
            first_id = row.id + 1
    return first_id


def in_scope(rows: sa.Table, scope: Scope) -> list[sa.ColumnElement[bool]]:
    """Returns the condition for the rows of a trial or of an experiment."""
    if scope.trial_id:
        return [rows.c.trial_id == scope.trial_id]
    return [rows.c.experiment_id == scope.experiment_id]


def _conditions(wanted: LogFilter) -> list[sa.ColumnElement[bool]]:
    logs = table.logs
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.since is not None:
        conditions.append(logs.c.at >= wanted.since)
    if wanted.until is not None:
        conditions.append(logs.c.at < wanted.until)
    if wanted.ranks:
        conditions.append(logs.c.rank.in_(wanted.ranks))
    if wanted.agent_ids:
        conditions.append(logs.c.agent_id.in_([table.storable(agent_id) for agent_id in wanted.agent_ids]))
    if wanted.levels:
        in_levels = logs.c.level.in_([table.LEVEL_NUMBERS[level] for level in wanted.levels])
        conditions.append(sa.or_(in_levels, logs.c.level.is_(None)) if LogLevel.INFO in wanted.levels else in_levels)
    return conditions


def _window(
    connection: sa.Connection, in_reach: Sequence[sa.ColumnElement[bool]], *, is_backward: bool
) -> tuple[int, int]:
    """Returns the number of the next rows in reach, at most SCAN_ROWS, and the id of the last of them. The index alone
    answers it."""
    logs = table.logs
    order = logs.c.id.desc() if is_backward else logs.c.id
    ids = sa.select(logs.c.id).where(*in_reach).order_by(order).limit(SCAN_ROWS).subquery()
    end = sa.func.min(ids.c.id) if is_backward else sa.func.max(ids.c.id)
    num_rows, end_id = connection.execute(sa.select(sa.func.count(), end).select_from(ids)).one()
    return num_rows, end_id or 0


def _fetch(connection: sa.Connection, conditions: Sequence[sa.ColumnElement[bool]], limit: int) -> Sequence[Any]:
    return connection.execute(sa.select(*_COLUMNS).where(*conditions).order_by(table.logs.c.id).limit(limit)).all()


def _fetch_all(connection: sa.Connection, conditions: Sequence[sa.ColumnElement[bool]], after_id: int) -> Iterator[Any]:
    """Yields all rows in the order of their ids, with few of them in memory."""
    while True:
        rows = _fetch(connection, [*conditions, table.logs.c.id > after_id], FETCH_ROWS)
        yield from rows
        if len(rows) < FETCH_ROWS:
            return
        after_id = rows[-1].id


def _walk_back(
    connection: sa.Connection, conditions: Sequence[sa.ColumnElement[bool]], query: LogQuery, before_id: int
) -> Iterator[tuple[int, bool]]:
    """Yields the ids of rows, newest first, and whether each matches the pattern."""
    logs = table.logs
    columns = (logs.c.id,) if query.matches is None else (logs.c.id, logs.c.text)
    while True:
        rows = connection.execute(
            sa.select(*columns).where(*conditions, logs.c.id < before_id).order_by(logs.c.id.desc()).limit(FETCH_ROWS)
        ).all()
        for row in rows:
            yield row.id, query.matches is None or query.matches(without_style(row.text))
        if len(rows) < FETCH_ROWS:
            return
        before_id = rows[-1].id


def _stored(row: Any) -> StoredLog:
    # Unpacking takes half the time of reading a row's attributes, and most reads are of many rows.
    row_id, trial_id, at, rank, agent_id, stream, text, level = row
    line = LogLine(rank, agent_id, stream, text, table.LEVELS.get(level, LogLevel.INFO))
    return StoredLog(row_id, trial_id, at, line)
