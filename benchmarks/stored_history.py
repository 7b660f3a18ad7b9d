"""Writes the history of trials into a gateway's database in bulk: reports of metrics, and lines of a log.

The rows are those that the gateway's writer stores, with the summaries of long series. Called by benchmarks that need
more history than a trial reports in an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from gangline.domain.history import MetricsPoint
from services.gateway.history import table
from services.gateway.history.condense import condense_next
from services.gateway.history.metric_block import BLOCK_REPORTS
from services.gateway.history.store import store_batches
from services.gateway.mirror.ingest_record import IngestBatch, IngestRecord

# Records of one transaction.
PART = 20_000
# Time of the first record, in seconds since 1970. Each later one is a second after the one before.
FIRST_AT = 1e9


@contextmanager
def gateway_database(data: Path) -> Iterator[sa.Engine]:
    """Yields an engine of the database of the gateway that `gangline up` has started with this folder."""
    engine = sa.create_engine(f"sqlite:///{data}/gateway/gateway.db")
    try:
        yield engine
    finally:
        engine.dispose()


def store_reports(
    engine: sa.Engine, trial_id: str, group: str, num_reports: int, metrics_of: Callable[[int], dict[str, float]]
) -> None:
    """Stores a report for each of the batches 1 to `num_reports`, and the summaries of these reports."""
    for start in range(1, num_reports + 1, PART):
        records = tuple(
            IngestRecord(n, FIRST_AT + n, MetricsPoint(group, n, metrics_of(n)))
            for n in range(start, min(start + PART, num_reports + 1))
        )
        experiment_id = int(trial_id.partition(".")[0])
        store_batches(engine, [IngestBatch(f"{trial_id}.1/reports", experiment_id, trial_id, records)], FIRST_AT)
        while condense_next(engine, trial_id, group) == BLOCK_REPORTS:
            pass


def store_lines(engine: sa.Engine, trial_id: str, num_lines: int) -> None:
    """Stores the lines 1 to `num_lines` of 8 ranks. The database makes them, in a fifth of the time of the writer."""
    logs = table.logs
    for start in range(1, num_lines + 1, PART):
        end = min(start + PART, num_lines + 1)
        numbers = sa.select(sa.literal(start).label("n")).cte(recursive=True)
        numbers = numbers.union_all(sa.select(numbers.c.n + 1).where(numbers.c.n < end - 1))
        n = numbers.c.n
        values: dict[sa.Column[Any], sa.ColumnElement[Any]] = {
            logs.c.experiment_id: sa.literal(int(trial_id.partition(".")[0])),
            logs.c.trial_id: sa.literal(trial_id),
            logs.c.at: FIRST_AT + n,
            logs.c.rank: n % 8,
            logs.c.agent_id: sa.literal("agent-1"),
            logs.c.stream: sa.literal("stdout"),
            logs.c.text: sa.literal("line ") + sa.cast(n, sa.Text) + sa.literal(" of the training, with its loss"),
        }
        with engine.begin() as connection:
            connection.execute(sa.insert(logs).from_select(list(values), sa.select(*values.values())))
