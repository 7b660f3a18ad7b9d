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
from alembic import command
from alembic.config import Config

from gangline.domain.history import MetricSeries, MetricsPoint, SeriesPoint
from gangline.errors import GanglineError
from services.gateway.history import reader as reader_module
from services.gateway.history import series as series_module
from services.gateway.history import table
from services.gateway.history.condense import condense_next, find_cursor
from services.gateway.history.database import MIGRATIONS, open_database, reading, writing
from services.gateway.history.eraser import Eraser
from services.gateway.history.metric_block import BLOCK_REPORTS
from services.gateway.history.reader import Reader
from services.gateway.history.series import MAX_TAIL, read_series
from services.gateway.history.store import store_batches
from services.gateway.history.writer import Writer
from services.gateway.mirror.ingest_record import IngestBatch, IngestRecord, Scope
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
            series = await reader.series(Scope(1, "1.1", "training"), metric, max_points)
            check(series, points, metric, max_points)
    with_all = await reader.series(Scope(1, "1.1", "training"), "accuracy", 10_000)
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
        check(await reader.series(Scope(1, "1.1", "training"), "loss", max_points), points, "loss", max_points)
        check(await reader.series(Scope(1, "1.1", "training"), "late", max_points), points, "late", max_points)


async def test_reports_of_an_earlier_version_are_summarised_by_their_first_reader(
    engine: sa.Engine, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = reports(MAX_TAIL + 2 * BLOCK_REPORTS)
    store_batches(engine, batches_of(points), 0.0)
    monkeypatch.setattr(reader_module, "SUMMARISE_SECONDS", -1.0)
    with pytest.raises(GanglineError) as failure:
        await reader.series(Scope(1, "1.1", "training"), "loss", 100)
    assert failure.value.code == "history.summarising"
    monkeypatch.undo()
    answers = await within(
        60, asyncio.gather(*(reader.series(Scope(1, "1.1", "training"), "loss", 100) for _ in range(4)))
    )
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
            found = read_series(connection, Scope(1, "1.1", "training"), "loss", 100)
            assert found is not None, "few reports have no block"
            check(found, points, "loss", 100)


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
    assert (await reader.series(Scope(1, "1.1", "training"), "loss", 10)).num_values == 0


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


def counted(points_by_attempt: dict[int, list[MetricsPoint]]) -> list[MetricsPoint]:
    """Returns the reports that count by the rule, in the order of the attempts."""
    kept = []
    for attempt, points in points_by_attempt.items():
        newer = [
            point.batches_completed
            for number, others in points_by_attempt.items()
            if number > attempt
            for point in others
        ]
        first_newer = min(newer, default=10**9)
        kept += [point for point in points if point.batches_completed < first_newer]
    return kept


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_newer_attempt_replaces_the_reports_of_older_ones(
    engine: sa.Engine, reader: Reader, is_late: bool
) -> None:
    """Also where the spool of the first attempt is delivered last, and where an attempt ends within a block."""
    by_attempt = {
        1: reports(2500),
        2: reports(40, first=1801, seed=2),
        3: reports(3000, first=1701, seed=3),
    }
    order = [2, 3, 1] if is_late else [1, 2, 3]
    for attempt in order:
        store_batches(engine, batches_of(by_attempt[attempt], f"1.1.{attempt}/0"), 0.0)
    while condense_next(engine, "1.1", "training") == BLOCK_REPORTS:
        pass
    stored = [point for attempt in order for point in by_attempt[attempt]]
    kept = {id(point) for point in counted(by_attempt)}
    now = [point for point in stored if id(point) in kept]
    assert len(now) == 1700 + 3000
    for metric, max_points in (("loss", 4), ("loss", 40), ("loss", 1000), ("loss", 10_000), ("accuracy", 300)):
        for choice, points in ((None, now), (0, stored), (1, by_attempt[1]), (2, by_attempt[2]), (3, by_attempt[3])):
            series = await reader.series(Scope(1, "1.1", "training", choice), metric, max_points)
            check(series, points, metric, max_points)
    assert (await reader.series(Scope(1, "1.1", "training", 9), "loss", 40)).num_values == 0
    for choice, points in ((None, now), (0, stored), (2, by_attempt[2])):
        page = await reader.metrics_after(Scope(1, "1.1", "training", choice), 0, 10_000)
        assert [row.point.batches_completed for row in page.rows] == [point.batches_completed for point in points]
    newest = await reader.newest(["1.1"])
    assert newest["1.1"].training is not None
    assert newest["1.1"].training.batches_completed == 4700


async def test_groups_that_count_the_same_batches_are_replaced_together(engine: sa.Engine, reader: Reader) -> None:
    def report(spool_id: str, group: str, *batches: int) -> None:
        points = [MetricsPoint(group, number, {"x": 1.0}) for number in batches]
        store_batches(engine, batches_of(points, spool_id), 0.0)

    async def rows(trial_id: str = "") -> list[tuple[int, str, int]]:
        page = await reader.metrics_after(Scope(1, trial_id), 0, 100)
        return [(row.attempt, row.point.group, row.point.batches_completed) for row in page.rows]

    report("1.1.1/0", "training", 10, 20, 30)
    report("1.1.1/1", "validation", 10, 20, 30)
    report("1.1.1/2", "epochs", 1, 2)
    report("1.1.2/0", "training", 20)
    expected = [
        (1, "training", 10),
        (1, "validation", 10),
        # The training at batch 20 says nothing of a validation after it.
        (1, "validation", 20),
        (1, "epochs", 1),
        (1, "epochs", 2),
        (2, "training", 20),
    ]
    assert await rows("1.1") == expected
    assert await rows() == expected
    report("1.1.2/1", "validation", 20)
    report("1.1.2/2", "epochs", 2)
    expected = [row for row in expected if row not in [(1, "validation", 20), (1, "epochs", 2)]]
    assert await rows("1.1") == [*expected, (2, "validation", 20), (2, "epochs", 2)]
    series = await reader.series(Scope(1, "1.1", "validation"), "x", 10)
    assert [point.batches_completed for point in series.points] == [10, 20]


async def test_reports_of_an_earlier_version_are_replaced_by_later_attempts(
    engine: sa.Engine, url: str, reader: Reader
) -> None:
    points = reports(BLOCK_REPORTS + 100)
    store_batches(engine, batches_of(points), 0.0)
    assert condense_next(engine, "1.1", "training") == BLOCK_REPORTS
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with writing(engine) as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0005")
    open_database(url).dispose()
    check(await reader.series(Scope(1, "1.1", "training"), "loss", 10_000), points, "loss", 10_000)
    again = reports(300, first=901, seed=2)
    store_batches(engine, batches_of(again, "1.1.2/0"), 0.0)
    check(await reader.series(Scope(1, "1.1", "training"), "loss", 10_000), [*points[:900], *again], "loss", 10_000)
    check(await reader.series(Scope(1, "1.1", "training", 0), "loss", 10_000), [*points, *again], "loss", 10_000)
