"""Erases the history of a deleted experiment: logs, metrics, progress, and the cursors of its spools.

The rows go in transactions of bounded size, so that trial runners' records are stored in between. Erasing what is
gone changes nothing. It blocks, so it runs in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import sqlalchemy as sa

from gangline.errors import unavailable
from services.gateway.history import table
from services.gateway.history.database import writing

# Rows of one transaction, and ids in one statement.
MAX_ROWS = 2000
MAX_IDS = 900
_OF_TRIALS = (
    table.newest_metrics,
    table.progress,
    table.metric_attempts,
    table.metric_blocks,
    table.metric_block_cursors,
)


class Eraser:
    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    async def erase(self, experiment_id: int, trial_ids: Sequence[str]) -> None:
        """Returns once nothing is left. Raises GanglineError `history.not_erased`."""
        await asyncio.to_thread(self._erase, experiment_id, trial_ids)

    def _erase(self, experiment_id: int, trial_ids: Sequence[str]) -> None:
        try:
            for rows in (table.logs, table.metrics):
                while _erase_some(self._engine, rows, experiment_id):
                    pass
            _erase_newest(self._engine, experiment_id, trial_ids)
        except sa.exc.DBAPIError as failure:
            raise unavailable(
                "history.not_erased", f"the history cannot be erased now: {str(failure.orig).splitlines()[0]}"
            ) from failure


def _erase_some(engine: sa.Engine, rows: sa.Table, experiment_id: int) -> bool:
    """Returns whether there may be more."""
    oldest = sa.select(rows.c.id).where(rows.c.experiment_id == experiment_id).order_by(rows.c.id).limit(MAX_ROWS)
    with writing(engine) as connection:
        return connection.execute(sa.delete(rows).where(rows.c.id.in_(oldest))).rowcount == MAX_ROWS


def _erase_newest(engine: sa.Engine, experiment_id: int, trial_ids: Sequence[str]) -> None:
    cursors = table.ingest_cursors
    with writing(engine) as connection:
        for start in range(0, len(trial_ids), MAX_IDS):
            part = trial_ids[start : start + MAX_IDS]
            for rows in _OF_TRIALS:
                connection.execute(sa.delete(rows).where(rows.c.trial_id.in_(part)))
        # The id of a spool begins with the id of its allocation, such as 7.1.1.
        connection.execute(sa.delete(cursors).where(cursors.c.spool_id.like(f"{experiment_id}.%")))
