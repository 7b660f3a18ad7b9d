"""Writes, reads and prunes the rows of the audit log. The queries block, so they run in threads.

Rows of a request whose id is recorded as done get the outcome "repeated". A record is written once, by its key.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import sqlalchemy as sa
import structlog

from gangline.domain.audit import DEFAULT_LIMIT, DONE, FAILED, REPEATED, AuditFilter, AuditRecord
from gangline.errors import unavailable
from services.gateway.audit.audit_log import Entry
from services.gateway.history import table
from services.gateway.history.database import reading, writing
from services.gateway.history.retention_policy import FOR_EVER
from services.gateway.mirror import metrics

T = TypeVar("T")

PERIOD_SECONDS = 3600.0
# After a failure.
RETRY_SECONDS = 60.0
# Rows of one transaction that prunes, and the pause after it, so that others write in between.
MAX_PRUNED = 1000
PAUSE_SECONDS = 0.05

_ROWS = table.audit
_NAMES = [field.name for field in fields(AuditRecord)]
_WRITTEN = [name for name in _NAMES if name != "id"]

log = structlog.get_logger(__name__)


class AuditRows:
    """Every method raises GanglineError `audit.unavailable` while the database cannot be used."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def store(self, entries: Sequence[Entry]) -> None:
        """Writes records in their order. Called in the thread of the audit log."""
        _blocking(lambda: _store(self._engine, entries))

    async def list(
        self, wanted: AuditFilter, limit: int = 0, before: tuple[float, int] | None = None
    ) -> list[AuditRecord]:
        """Returns a page of the records that match, the newest first. before: only those behind this time and id."""
        selected = select(wanted, limit or DEFAULT_LIMIT, before)

        def query() -> list[AuditRecord]:
            with reading(self._engine) as connection:
                return [AuditRecord(**{name: getattr(row, name) for name in _NAMES}) for row in
                        connection.execute(selected)]  # fmt: skip

        return await asyncio.to_thread(_blocking, query)

    async def prune(self, before: float) -> int:
        """Deletes the records that are older, in small steps. Returns their number."""
        oldest = sa.select(_ROWS.c.id).where(_ROWS.c.at < before).order_by(_ROWS.c.at).limit(MAX_PRUNED)

        def delete() -> int:
            with writing(self._engine) as connection:
                return connection.execute(sa.delete(_ROWS).where(_ROWS.c.id.in_(oldest))).rowcount

        num_rows = 0
        while True:
            num_deleted = await asyncio.to_thread(_blocking, delete)
            num_rows += num_deleted
            if num_deleted < MAX_PRUNED:
                return num_rows
            await asyncio.sleep(PAUSE_SECONDS)


class AuditSweep:
    """Deletes old records in the background. days: -1 keeps them for ever. Every gateway does all of it."""

    def __init__(self, rows: AuditRows, days: int, now: Callable[[], float] = time.time) -> None:
        self._rows = rows
        self._days = days
        self._now = now

    async def run(self) -> None:
        """Deletes until it is cancelled."""
        while self._days != FOR_EVER:
            seconds = PERIOD_SECONDS
            try:
                num_rows = await self._rows.prune(self._now() - self._days * 86400.0)
                metrics.RETIRED_ROWS.labels("audit").inc(num_rows)
            except Exception as failure:  # noqa: BLE001  top of a long-lived task: it is tried again
                log.warning("old records of the audit log could not be deleted, trying again", reason=str(failure))
                seconds = RETRY_SECONDS
            await asyncio.sleep(seconds)


def select(wanted: AuditFilter, limit: int, before: tuple[float, int] | None) -> sa.Select[Any]:
    """Returns the query of a page. Its conditions and its order follow one of the table's indexes."""
    selected = sa.select(_ROWS).where(*_conditions(wanted))
    if before is not None:
        selected = selected.where(sa.tuple_(_ROWS.c.at, _ROWS.c.id) < sa.tuple_(*map(sa.literal, before)))
    return selected.order_by(_ROWS.c.at.desc(), _ROWS.c.id.desc()).limit(limit)


def _store(engine: sa.Engine, entries: Sequence[Entry]) -> None:
    rows = [_row_of(entry) for entry in entries]
    with writing(engine) as connection:
        written = set(_found(connection, _ROWS.c.record_key, [row["record_key"] for row in rows]))
        done = set(_found(connection, _ROWS.c.done_key, [row["done_key"] for row in rows if row["done_key"]]))
        new = [row for row in rows if row["record_key"] not in written]
        for row in new:
            if row["done_key"] is not None and row["done_key"] in done:
                row["outcome"], row["done_key"] = REPEATED, None
            elif row["done_key"] is not None:
                done.add(row["done_key"])
        if new:
            connection.execute(sa.insert(_ROWS), new)


def _found(connection: sa.Connection, column: sa.ColumnElement[Any], values: Sequence[str]) -> Sequence[str]:
    return connection.scalars(sa.select(column).where(column.in_(values))).all() if values else []


def _row_of(entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {"record_key": entry.key, "done_key": _done_key(entry.record)}
    # dataclasses.asdict copies each value, which takes longer than the insertion of the row.
    for name in _WRITTEN:
        value = getattr(entry.record, name)
        row[name] = table.storable(value) if isinstance(value, str) else value
    return row


def _done_key(record: AuditRecord) -> str | None:
    """Returns what is the same for a change that is sent again; None for a record that stands for no change."""
    if record.outcome != DONE or not record.request_id:
        return None
    parts = (record.actor_kind, record.actor, record.request_id, record.action, record.object_kind, record.object_id)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _conditions(wanted: AuditFilter) -> list[sa.ColumnElement[bool]]:
    columns, conditions = _ROWS.c, []
    if wanted.user:
        conditions.append(columns.actor == table.storable(wanted.user))
    if wanted.action:
        action = table.storable(wanted.action)
        is_kind = columns.action.startswith(f"{action}.", autoescape=True)
        conditions.append(columns.action == action if "." in action else is_kind)
    if wanted.object:
        kind, slash, own_id = table.storable(wanted.object).partition("/")
        conditions.append(columns.object_kind == kind)
        if slash:
            conditions.append(columns.object_id == own_id)
    if wanted.since:
        conditions.append(columns.at >= wanted.since)
    if wanted.until:
        conditions.append(columns.at < wanted.until)
    if wanted.outcome == FAILED:
        conditions.append(columns.outcome.not_in((DONE, REPEATED)))
    elif wanted.outcome:
        conditions.append(columns.outcome == table.storable(wanted.outcome))
    if wanted.address:
        conditions.append(columns.address == table.storable(wanted.address))
    return conditions


def _blocking(work: Callable[[], T]) -> T:
    try:
        return work()
    except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError) as failure:
        reason = str(failure.orig if isinstance(failure, sa.exc.DBAPIError) else failure).splitlines()[0]
        text = f"the audit log cannot be read or written now: {reason}; try again later"
        raise unavailable("audit.unavailable", text) from failure
