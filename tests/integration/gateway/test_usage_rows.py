"""The rows of usage and the erasing of an experiment's history, on SQLite and on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from gangline.domain.history import LogLine, MetricsPoint, ProgressPoint
from gangline.domain.state import UsageGroup
from gangline.domain.usage import AllocationUsage, AttemptUsage, UsageEntry, add_up, entry_of
from services.gateway.history import eraser, table, usage
from services.gateway.history.eraser import Eraser
from services.gateway.history.store import store_batches
from services.gateway.history.usage import read_recent_usage, read_usage, store_usage
from services.gateway.mirror.ingest_record import IngestBatch, IngestRecord


def _record(number: int, owner: str, start: float, end: float, *, cpu: int = 0, gpu: int = 0) -> AllocationUsage:
    return AllocationUsage(f"{number}.1.1", number, owner, AttemptUsage(1, "p", cpu, gpu, start, end))


_RECORDS = [
    _record(1, "ann", 0, 100, cpu=1),
    _record(2, "bob", 50, 80, gpu=4),
    _record(3, "ann", 90, 300, cpu=2, gpu=1),
    _record(4, "ann", 1000, 1001, cpu=9),
]


@pytest.mark.parametrize("by", [UsageGroup.OWNER, UsageGroup.POOL, UsageGroup.EXPERIMENT])
@pytest.mark.parametrize(("since", "until"), [(0, 2000), (60, 95), (100, 1000), (2000, 3000)])
def test_sums_of_the_database_are_those_of_the_records(
    engine: sa.Engine, by: UsageGroup, since: float, until: float
) -> None:
    store_usage(engine, _RECORDS)
    entries = (entry_of(record, by, since, until) for record in _RECORDS)
    with engine.connect() as connection:
        assert add_up(read_usage(connection, since, until, by, 5000)) == add_up(entry for entry in entries if entry)


def test_a_row_is_written_once_and_recent_ones_are_told_apart(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MAX_ROWS", 3)
    store_usage(engine, _RECORDS[:2])
    late = replace(_RECORDS[0], owner="other")
    store_usage(engine, [late, *_RECORDS])
    with engine.connect() as connection:
        assert read_recent_usage(connection, 300) == _RECORDS[2:]
        assert add_up(read_usage(connection, 0, 5000, UsageGroup.OWNER, 300)) == (
            UsageEntry("bob", 0, 120, 1), UsageEntry("ann", 100, 0, 1),
        )  # fmt: skip


async def test_erasing_takes_one_experiment_and_leaves_usage(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eraser, "MAX_ROWS", 2)
    monkeypatch.setattr(eraser, "MAX_IDS", 1)
    contents: list[LogLine | MetricsPoint | ProgressPoint] = [
        LogLine(0, "a", "stdout", "x"),
        MetricsPoint("training", 1, {"loss": 1.0}),
        ProgressPoint(1, 2, 1.0),
    ]
    for trial_id in ("7.1", "7.2", "71.1"):
        number = int(trial_id.partition(".")[0])
        lines = tuple(IngestRecord(sequence, 1.0, contents[sequence % 3]) for sequence in range(1, 16))
        store_batches(engine, [IngestBatch(f"{trial_id}.1/0", number, trial_id, lines)], 1.0)
    store_usage(engine, [_record(7, "ann", 0, 1)])
    await Eraser(engine).erase(7, ["7.1", "7.2"])
    with engine.connect() as connection:
        for rows in (table.logs, table.metrics, table.newest_metrics, table.progress):
            left = set(connection.scalars(sa.select(rows.c.trial_id)))
            assert left == {"71.1"}
        assert list(connection.scalars(sa.select(table.ingest_cursors.c.spool_id))) == ["71.1.1/0"]
        assert len(read_recent_usage(connection, 0)) == 1
    await Eraser(engine).erase(7, ["7.1", "7.2"])
