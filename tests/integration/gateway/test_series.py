"""Long series of metrics on both databases: few points, the true extremes, each report counted once."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from gangline.domain.history import MetricSeries, MetricsPoint, SeriesPoint
from gangline.errors import GanglineError
from services.gateway.history import reader as reader_module
from services.gateway.history import series as series_module
from services.gateway.history import table
from services.gateway.history.condense import condense_next, find_cursor
from services.gateway.history.database import reading
from services.gateway.history.eraser import Eraser
from services.gateway.history.metric_block import BLOCK_REPORTS
from services.gateway.history.reader import Reader
from services.gateway.history.series import MAX_TAIL, read_series
from services.gateway.history.store import store_batches
from services.gateway.history.writer import Writer
from services.gateway.mirror.ingest_record import IngestBatch, IngestRecord
from tests.support.wait import within


@pytest.fixture
async def reader(engine: sa.Engine) -> AsyncIterator[Reader]:
    reader = Reader(engine)
    yield reader
    reader.close()


def reports(num_reports: int, first: int = 1, seed: int = 1) -> list[MetricsPoint]:
    """Returns reports with a noisy loss, an accuracy in every third, and some values that are no numbers."""
    draw = random.Random(seed)
    points = []
    for batches in range(first, first + num_reports):
        metrics = {"loss": math.nan if draw.random() < 0.01 else draw.gauss(1, 5)}
        if batches % 3 == 0:
            metrics["accuracy"] = draw.random()
        points.append(MetricsPoint("training", batches, metrics))
    return points


def batches_of(points: list[MetricsPoint], spool_id: str = "1.1.1/0", size: int = 500) -> list[IngestBatch]:
    records = [IngestRecord(number, 1e9 + number, point) for number, point in enumerate(points, 1)]
    return [
        IngestBatch(spool_id, 1, "1.1", tuple(records[start : start + size])) for start in range(0, len(records), size)
    ]


def check(series: MetricSeries, points: list[MetricsPoint], metric: str, max_points: int) -> None:
    """Compares a series with all reports."""
    values = [point.metrics[metric] for point in points if metric in point.metrics]
    finite = [
        (point.batches_completed, point.metrics[metric])
        for point in points
        if math.isfinite(point.metrics.get(metric, math.nan))
    ]
    drawn = [(point.batches_completed, point.value) for point in series.points]
    assert (series.num_values, series.num_nonfinite) == (len(values), len(values) - len(finite))
    assert len(drawn) <= max_points
    assert set(drawn) <= set(finite)
    assert (drawn[0], drawn[-1]) == (finite[0], finite[-1])
    assert min(value for _, value in drawn) == min(value for _, value in finite)
    assert max(value for _, value in drawn) == max(value for _, value in finite)
    # At least a quarter of the points that are allowed, unless there are fewer values.
    assert len(drawn) >= min(len(finite), max_points // 4)


def count(engine: sa.Engine, rows: sa.Table) -> int:
    with engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(rows)) or 0


async def test_a_series_is_read_from_blocks_from_spans_and_from_reports(engine: sa.Engine, reader: Reader) -> None:
    points = reports(3 * BLOCK_REPORTS + 100)
    writer = Writer(engine, lambda _: None)
    for batch in batches_of(points):
        await within(20, writer.store(batch))
    await writer.close()
    assert count(engine, table.metric_blocks) == 3 * 2, "a block for each metric"
    for metric in ("loss", "accuracy"):
        for max_points in (4, 6, 50, 300, 1000, 10_000):
            series = await reader.series("1.1", "training", metric, max_points)
            check(series, points, metric, max_points)
    with_all = await reader.series("1.1", "training", "accuracy", 10_000)
    assert with_all.points == tuple(
        SeriesPoint(point.batches_completed, 1e9 + point.batches_completed, point.metrics["accuracy"])
        for point in points
        if "accuracy" in point.metrics
    )


async def test_batches_that_are_trained_again_and_a_metric_that_comes_late(engine: sa.Engine, reader: Reader) -> None:
    """After a restart an attempt reports batches again. All reports count, in the order in which they were stored."""
    late = [MetricsPoint("training", 900 + number, {"late": float(number)}) for number in range(50)]
    points = [*reports(1500), *reports(1000, first=700, seed=2), *late]
    store_batches(engine, batches_of(points), 0.0)
    while condense_next(engine, "1.1", "training") == BLOCK_REPORTS:
        pass
    for max_points in (4, 40, 4000):
        check(await reader.series("1.1", "training", "loss", max_points), points, "loss", max_points)
        check(await reader.series("1.1", "training", "late", max_points), points, "late", max_points)


async def test_reports_of_an_earlier_version_are_summarised_by_their_first_reader(
    engine: sa.Engine, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = reports(MAX_TAIL + 2 * BLOCK_REPORTS)
    store_batches(engine, batches_of(points), 0.0)
    monkeypatch.setattr(reader_module, "SUMMARISE_SECONDS", -1.0)
    with pytest.raises(GanglineError) as failure:
        await reader.series("1.1", "training", "loss", 100)
    assert failure.value.code == "history.summarising"
    monkeypatch.undo()
    answers = await within(60, asyncio.gather(*(reader.series("1.1", "training", "loss", 100) for _ in range(4))))
    for series in answers:
        check(series, points, "loss", 100)


def test_a_block_that_is_stored_while_the_series_is_read_does_not_count_twice(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = reports(2 * BLOCK_REPORTS)
    store_batches(engine, batches_of(points), 0.0)

    def find_and_condense(connection: sa.Connection, trial_id: str, group: str) -> int:
        found = find_cursor(connection, trial_id, group)
        assert condense_next(engine, trial_id, group) == BLOCK_REPORTS
        return found

    monkeypatch.setattr(series_module, "find_cursor", find_and_condense)
    for _ in range(2):
        with reading(engine) as connection:
            check(read_series(connection, "1.1", "training", "loss", 100), points, "loss", 100)


def test_gateways_that_summarise_at_the_same_time_store_each_block_once(engine: sa.Engine) -> None:
    store_batches(engine, batches_of(reports(4 * BLOCK_REPORTS)), 0.0)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: condense_next(engine, "1.1", "training"), range(16)))
    with engine.connect() as connection:
        blocks = table.metric_blocks
        ranges = connection.execute(
            sa.select(blocks.c.first_id, blocks.c.last_id).where(blocks.c.metric == "loss").order_by(blocks.c.last_id)
        ).all()
    assert [last - first for first, last in ranges] == [BLOCK_REPORTS - 1] * 4
    assert [first for first, _ in ranges[1:]] == [last + 1 for _, last in ranges[:-1]]


async def test_erasing_an_experiment_erases_its_blocks(engine: sa.Engine, reader: Reader) -> None:
    store_batches(engine, batches_of(reports(BLOCK_REPORTS)), 0.0)
    assert condense_next(engine, "1.1", "training") == BLOCK_REPORTS
    await Eraser(engine).erase(1, ["1.1"])
    assert count(engine, table.metric_blocks) == 0
    assert count(engine, table.metric_block_cursors) == 0
    assert (await reader.series("1.1", "training", "loss", 10)).num_values == 0


async def test_reports_are_stored_though_they_cannot_be_summarised(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> int:
        raise sa.exc.OperationalError("insert", {}, Exception("the disk is full"))

    monkeypatch.setattr("services.gateway.history.condense.condense_next", fail)
    writer = Writer(engine, lambda _: None)
    for batch in batches_of(reports(BLOCK_REPORTS + 1)):
        await within(20, writer.store(batch))
    await writer.close()
    assert count(engine, table.metrics) == BLOCK_REPORTS + 1
