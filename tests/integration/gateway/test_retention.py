"""Old logs and metrics go on both databases: all of them, nothing else, with a line that names the rule."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from gangline.domain.experiment import Experiment, Trial
from gangline.domain.history import LogLine, MetricsPoint
from gangline.domain.state import State
from gangline.protocol.wire import to_proto
from services.common import keys
from services.gateway.history import retention_sweep as retention_module
from services.gateway.history import table
from services.gateway.history.condense import condense_next
from services.gateway.history.database import open_database
from services.gateway.history.metric_block import BLOCK_REPORTS
from services.gateway.history.reader import Reader
from services.gateway.history.retention_policy import Days
from services.gateway.history.retention_sweep import RetentionSweep
from services.gateway.history.store import store_batches
from services.gateway.mirror.ingest_record import IngestBatch, IngestRecord, Scope
from tests.support.stand_in_mirror import StandInMirror

_DAY = 86_400.0
_END = 1e9
_NUM_LINES = 45


def _mirror() -> StandInMirror:
    """Returns a cluster with two ended trials and one that runs. The second has days of its own."""
    mirror = StandInMirror()
    own = '{"retention_policy": {"log_retention_days": 90, "metric_retention_days": -1}}'
    for number, config in ((1, "{}"), (2, own), (3, "{}")):
        trial_id = f"{number}.1"
        state, ended_at = (State.RUNNING, 0.0) if number == 3 else (State.TERMINAL, _END)
        for key, record in (
            (keys.experiment(number), Experiment(number, "digits", "ann", config, "c" * 64)),
            (keys.trial(trial_id), Trial(trial_id, number, 1, state=state, ended_at=ended_at)),
        ):
            mirror.state.apply(key, to_proto(record).SerializeToString())
    return mirror


def _fill(engine: sa.Engine) -> None:
    for number in (1, 2, 3):
        lines = [
            IngestRecord(line, 1.0, LogLine(0, "a", "stdout", f"line {line}")) for line in range(1, _NUM_LINES + 1)
        ]
        reports = [
            IngestRecord(_NUM_LINES + batches, 1.0, MetricsPoint("training", batches, {"loss": float(batches)}))
            for batches in range(1, BLOCK_REPORTS + 1)
        ]
        trial_id = f"{number}.1"
        store_batches(engine, [IngestBatch(f"{trial_id}.1/0", number, trial_id, (*lines, *reports))], 1.0)
        assert condense_next(engine, trial_id, "training") == BLOCK_REPORTS


def _count(engine: sa.Engine, rows: sa.Table) -> dict[str, int]:
    with engine.connect() as connection:
        counted = connection.execute(sa.select(rows.c.trial_id, sa.func.count()).group_by(rows.c.trial_id))
        return {row.trial_id: row[1] for row in counted}


async def test_what_is_old_goes_and_a_line_names_the_rule(
    url: str, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_module, "MAX_ROWS", 100)
    _fill(engine)
    mirror, other = _mirror(), open_database(url)
    days, now = Days(logs=30, metrics=60), _END + 29 * _DAY
    # Two gateways on one database.
    gateways = [RetentionSweep(mirror, part, days, lambda: now) for part in (engine, other)]

    async def sweep() -> None:
        await asyncio.gather(*(gateway.sweep() for gateway in gateways))

    await sweep()
    assert _count(engine, table.logs) == dict.fromkeys(("1.1", "2.1", "3.1"), _NUM_LINES)
    now = _END + 30 * _DAY
    await sweep()
    assert _count(engine, table.logs) == {"1.1": 1, "2.1": _NUM_LINES, "3.1": _NUM_LINES}
    assert _count(engine, table.metrics) == dict.fromkeys(("1.1", "2.1", "3.1"), BLOCK_REPORTS)
    now = _END + 100 * _DAY
    # Lines that were delivered late go with the next pass, and the notice stays as it was.
    late = IngestRecord(5000, 1.0, LogLine(0, "a", "stdout", "late"))
    store_batches(engine, [IngestBatch("1.1.1/0", 1, "1.1", (late,))], 1.0)
    for _ in range(2):
        await sweep()
    assert _count(engine, table.logs) == {"1.1": 2, "2.1": 1, "3.1": _NUM_LINES}
    assert _count(engine, table.metrics) == {"2.1": BLOCK_REPORTS, "3.1": BLOCK_REPORTS}
    assert _count(engine, table.metric_blocks) == {"2.1": 1, "3.1": 1}
    assert _count(engine, table.metric_block_cursors) == {"2.1": 1, "3.1": 1}
    reader = Reader(engine)
    notices = [row.line for row in (await reader.logs_after(Scope(1, "1.1"), 0, 9)).rows]
    assert [line.text for line in notices] == [
        "the log of this trial was deleted 30 days after the end of the trial (log_retention_days)",
        "the metrics of this trial were deleted 60 days after the end of the trial (metric_retention_days), except for "
        "the newest",
    ]
    newest = (await reader.newest(["1.1"]))["1.1"].training
    assert newest is not None
    assert newest.batches_completed == BLOCK_REPORTS
    reader.close()
    other.dispose()
