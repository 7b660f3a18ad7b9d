"""Deletes logs and metrics of trials that ended long ago.

The settings of the gateway name the days, and an experiment's `retention_policy` its own; `retention_policy.py` decides
what is due. Rows go in transactions of bounded size, so that trial runners' records are stored in between. The last
one leaves a line in the log of the trial that names the rule. The newest metrics of each group stay, as do the records
of trials, usage and checkpoints. Every gateway does all of it: deleting what is gone changes nothing.

One task lives as long as the gateway; its queries run in a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

import sqlalchemy as sa
import structlog

from gangline.domain.id import parse_trial_id
from services.gateway.history import table
from services.gateway.history.database import writing
from services.gateway.history.retention_policy import Days, HistoryExpiry, HistoryKind, find_expired
from services.gateway.mirror import metrics
from services.gateway.mirror.mirror import Watched

PERIOD_SECONDS = 3600.0
# After a failure.
RETRY_SECONDS = 60.0
# Rows of one transaction, and ids in one statement.
MAX_ROWS = 2000
MAX_IDS = 900
# The stream of the lines that name a deletion. They stay.
STREAM = "retention"

log = structlog.get_logger(__name__)


class RetentionSweep:
    """Deletes in the background. days: of experiments that name none. now: a clock in seconds since 1970."""

    def __init__(self, mirror: Watched, engine: sa.Engine, days: Days, now: Callable[[], float] = time.time) -> None:
        self._mirror = mirror
        self._engine = engine
        self._days = days
        self._now = now

    async def run(self) -> None:
        """Deletes until it is cancelled."""
        while True:
            seconds = PERIOD_SECONDS
            try:
                await self.sweep()
            except sa.exc.DBAPIError as failure:
                log.warning("old history could not be deleted, trying again", reason=str(failure.orig))
                seconds = RETRY_SECONDS
            except Exception:
                # The top of a long-lived task: a bug here must not let the database grow for good.
                log.exception("deleting old history failed")
            await asyncio.sleep(seconds)

    async def sweep(self) -> None:
        """Deletes all that is due now. Raises DBAPIError when the database is away."""
        state = self._mirror.state
        records = list(state.experiments.all()), list(state.trials.all())
        expired = await asyncio.to_thread(find_expired, *records, self._days, self._now())
        for kind in HistoryKind:
            of_kind = {expiry.trial_id: expiry for expiry in expired if expiry.kind is kind}
            for trial_id in await asyncio.to_thread(_find_filled, self._engine, kind, list(of_kind)):
                num_rows = await asyncio.to_thread(_delete, self._engine, of_kind[trial_id], self._now())
                metrics.RETIRED_ROWS.labels(kind).inc(num_rows)
                log.info("old history is deleted", trial_id=trial_id, kind=kind, num_rows=num_rows)


def _find_filled(engine: sa.Engine, kind: HistoryKind, trial_ids: Sequence[str]) -> list[str]:
    """Returns those of the trials that have rows which may be deleted."""
    rows = _table_of(kind)
    filled: list[str] = []
    with engine.connect() as connection:
        for start in range(0, len(trial_ids), MAX_IDS):
            part = trial_ids[start : start + MAX_IDS]
            filled += connection.scalars(
                sa.select(rows.c.trial_id).where(rows.c.trial_id.in_(part), *_deletable(kind)).distinct()
            )
    return filled


def _delete(engine: sa.Engine, expiry: HistoryExpiry, now: float) -> int:
    """Deletes the rows of a trial and returns their number."""
    rows = _table_of(expiry.kind)
    oldest = (
        sa.select(rows.c.id)
        .where(rows.c.trial_id == expiry.trial_id, *_deletable(expiry.kind))
        .order_by(rows.c.id)
        .limit(MAX_ROWS)
    )
    num_rows, is_last = 0, False
    while not is_last:
        with writing(engine) as connection:
            num_deleted = connection.execute(sa.delete(rows).where(rows.c.id.in_(oldest))).rowcount
            num_rows += num_deleted
            is_last = num_deleted < MAX_ROWS
            if is_last:
                _finish(connection, expiry, now)
    return num_rows


def _finish(connection: sa.Connection, expiry: HistoryExpiry, now: float) -> None:
    """Deletes the summaries of deleted metrics, and leaves a line in the log unless it is there."""
    if expiry.kind is HistoryKind.METRICS:
        for rows in (table.metric_attempts, table.metric_blocks, table.metric_block_cursors):
            connection.execute(sa.delete(rows).where(rows.c.trial_id == expiry.trial_id))
    logs = table.logs
    is_there = sa.select(logs.c.id).where(
        logs.c.trial_id == expiry.trial_id, logs.c.stream == STREAM, logs.c.text == expiry.notice
    )
    if connection.scalar(is_there.limit(1)) is None:
        experiment_id, _ = parse_trial_id(expiry.trial_id)
        place = {"experiment_id": experiment_id, "trial_id": expiry.trial_id, "at": now, "rank": None, "agent_id": ""}
        connection.execute(sa.insert(logs), {**place, "stream": STREAM, "text": expiry.notice, "level": None})


def _table_of(kind: HistoryKind) -> sa.Table:
    return table.logs if kind is HistoryKind.LOGS else table.metrics


def _deletable(kind: HistoryKind) -> Iterable[sa.ColumnElement[bool]]:
    return [table.logs.c.stream != STREAM] if kind is HistoryKind.LOGS else []
