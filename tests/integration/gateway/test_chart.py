"""Series of several trials in one answer, names of metrics, and logs backwards and by time, on a real gateway."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gangline.domain.history import LogFilter, LogLine, MetricsPoint, StoredLog
from gangline.domain.state import LogLevel
from gangline.pattern import compile_pattern
from services.common.etcd import EtcdClient
from services.gateway.history.attempt import BatchRange
from services.gateway.history.condense import condense_next
from services.gateway.history.log_scan import ALL_LINES, LogQuery
from services.gateway.history.metric_block import BLOCK_REPORTS
from services.gateway.history.reader import Reader
from services.gateway.history.store import store_batches
from services.gateway.mirror.ingest_record import IngestBatch, IngestRecord, Scope
from tests.support.gateway import Client, put_trials

NUM = 3 * BLOCK_REPORTS + 100


def value_of(number: int, trial: int) -> float:
    return math.sin(number * trial) + (1000 if number == 1500 else 0)


def store(engine: sa.Engine, trial: int, num: int = NUM, *, attempt: int = 1, first: int = 1) -> None:
    records = tuple(
        IngestRecord(
            number - first + 1,
            1e9 + number,
            MetricsPoint("training", number, {"loss": value_of(number, trial) + (attempt - 1), f"only/{trial}": 1.0}),
        )
        for number in range(first, num + 1)
    )
    store_batches(engine, [IngestBatch(f"7.{trial}.{attempt}/0", 7, f"7.{trial}", records)], 1e9)
    while condense_next(engine, f"7.{trial}", "training") == BLOCK_REPORTS:
        pass


@pytest.fixture
def database(tmp_path: Path) -> sa.Engine:
    return sa.create_engine(f"sqlite:///{tmp_path}/gateway.db")


async def test_charts_of_several_trials(etcd: EtcdClient, client: Client, database: sa.Engine) -> None:
    await put_trials(client, etcd)
    for trial in (1, 2):
        store(database, trial)
    path = "/api/v1/metrics/series"
    params: dict[str, Any] = {
        "trialIds": ["7.1", "7.2"],
        "metrics": ["loss", "validation/accuracy"],
        "maxDatapoints": 50,
    }
    series = (await client.http.get(path, params=params)).json()["series"]
    assert [(each["trialId"], each["group"], each["metric"]) for each in series] == [
        ("7.1", "training", "loss"), ("7.1", "validation", "accuracy"),
        ("7.2", "training", "loss"), ("7.2", "validation", "accuracy"),
    ]  # fmt: skip
    for each, trial in ((series[0], 1), (series[2], 2)):
        assert each["numValues"] == NUM
        assert len(each["values"]) == len(each["batches"]) == len(each["times"]) <= 50
        assert max(each["values"]) == value_of(1500, trial)
        assert each["values"] == [value_of(number, trial) for number in each["batches"]]
        assert (each["batches"][0], each["batches"][-1]) == (1, NUM)
    assert series[1]["values"] == []
    # A range is read in more detail, and has no value from outside.
    zoomed = (
        await client.http.get(path, params={**params, "metrics": "loss", "fromBatch": 1400, "toBatch": 1449})
    ).json()["series"][0]
    assert zoomed["batches"] == list(range(1400, 1450))
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"trialIds": ["7.1"] * 2 + ["7.9"], "metrics": "loss"}, "trial.not_found"),
        ({"trialIds": [f"7.{n}" for n in range(101)], "metrics": "loss"}, "series.too_many"),
        ({"trialIds": "7.1", "metrics": "training/"}, "series.metric"),
        ({"trialIds": "7.1", "metrics": [f"m{n}" for n in range(300)], "maxDatapoints": 10_000}, "series.max_points"),
    )
    for bad, code in refused:
        assert (await client.http.get(path, params=bad)).json()["code"] == code


async def test_a_range_of_a_restarted_trial(tmp_path: Path, engine: sa.Engine) -> None:
    store(engine, 1, 2500)
    store(engine, 1, 4000, attempt=2, first=2000)
    reader = Reader(engine)
    for first, last in ((0, None), (1, 1999), (1990, 2010), (2048, 3100), (3999, 9000), (5000, 6000)):
        series = await reader.series(Scope(7, "7.1", "training"), "loss", 10_000, batch_range=BatchRange(first, last))
        expected = [number for number in range(1, 4001) if first <= number <= (last or 4000)]
        shown = [point.batches_completed for point in series.points]
        assert series.num_values == len(expected)
        # With few points per value the samples of a span stand for it.
        assert set(shown) <= set(expected)
        assert len(expected) > 5000 / 2 or shown == expected, (first, last)
        wanted = {number: value_of(number, 1) + (number >= 2000) for number in shown}
        assert {point.batches_completed: point.value for point in series.points} == wanted
    one = await reader.series(Scope(7, "7.1", "training", 1), "loss", 10_000, batch_range=BatchRange(2400, 2600))
    assert [point.batches_completed for point in one.points] == list(range(2400, 2501))
    reader.close()


async def test_names_of_metrics_are_searched_and_paged(etcd: EtcdClient, client: Client, database: sa.Engine) -> None:
    await put_trials(client, etcd)
    store(database, 1, BLOCK_REPORTS + 5)
    store(database, 2, 5)
    names = {f"layer.{number}": 1.0 for number in range(2000)}
    record = IngestRecord(1, 1e9, MetricsPoint("validation", 5, names))
    store_batches(database, [IngestBatch("7.2.9/0", 7, "7.2", (record,))], 1e9)
    path = "/api/v1/metrics/names"
    both = (await client.http.get(path, params={"trialIds": ["7.1", "7.2"], "group": "training"})).json()
    assert [name["name"] for name in both["metrics"]] == ["loss", "only/1", "only/2"]
    page = (
        await client.http.get(path, params={"trialIds": "7.2", "search": "LAYER.1", "offset": 1100, "limit": 50})
    ).json()
    assert page["total"] == 1111
    assert len(page["metrics"]) == 11
    assert page["metrics"][-1] == {"group": "validation", "name": "layer.1999"}


def lines(num: int) -> list[IngestRecord]:
    levels = (LogLevel.INFO, LogLevel.ERROR)
    return [
        IngestRecord(n, 1e9 + n, LogLine(n % 4, "a1", "stdout", f"line {n}", levels[n % 100 == 0]))
        for n in range(1, num + 1)
    ]


async def read_back(reader: Reader, query: LogQuery, limit: int, before_id: int) -> list[list[StoredLog]]:
    pages: list[list[StoredLog]] = []
    next_id: int | None = before_id
    while next_id is not None:
        rows, next_id = await reader.logs_before(Scope(7, "7.1"), next_id, limit, query, 5.0)
        pages.append(rows)
    return pages


async def test_a_log_is_read_backwards_and_from_a_time(engine: sa.Engine) -> None:
    num = 12_000
    other = IngestBatch("7.2.1/0", 7, "7.2", tuple(lines(50)))
    store_batches(engine, [other, IngestBatch("7.1.1/0", 7, "7.1", tuple(lines(num)))], 1e9)
    reader = Reader(engine)
    texts = [f"line {n}" for n in range(1, num + 1)]
    for query, wanted in (
        (ALL_LINES, texts),
        (LogQuery(LogFilter(levels=(LogLevel.ERROR,))), texts[99::100]),
        (LogQuery(LogFilter(ranks=(1,))), texts[0::4]),
        (LogQuery(LogFilter(pattern="7$"), compile_pattern("7$")), texts[6::10]),
        (LogQuery(LogFilter(pattern="none"), compile_pattern("none")), []),
    ):
        pages = await read_back(reader, query, 997, 2**62)
        assert [row.line.text for page in reversed(pages) for row in page] == wanted
        assert all(len(page) <= 997 for page in pages)
    for at, text in ((0.0, "line 1"), (1e9 + 6000, "line 6000"), (1e9 + 6000.5, "line 6001"), (1e9 + num, texts[-1])):
        place = await reader.find_log_time(Scope(7, "7.1"), at)
        assert [row.line.text for row in (await reader.logs_after(Scope(7, "7.1"), place - 1, 1)).rows] == [text]
    beyond = await reader.find_log_time(Scope(7, "7.1"), 2e9)
    assert (await reader.logs_after(Scope(7, "7.1"), beyond - 1, 1)).rows == []
    reader.close()


async def test_older_lines_over_http(etcd: EtcdClient, client: Client, database: sa.Engine) -> None:
    await put_trials(client, etcd)
    store_batches(database, [IngestBatch("7.1.1/0", 7, "7.1", tuple(lines(30)))], 1e9)
    path = "/api/v1/trials/7.1/logs"
    place = (await client.http.get(f"{path}/place", params={"time": "2001-09-09T01:47:00Z"})).json()["id"]
    page = (await client.http.get(path, params={"beforeId": place, "limit": 5})).json()
    assert [row["line"]["text"] for row in page["logs"]] == [f"line {n}" for n in range(15, 20)]
    older = (await client.http.get(path, params={"beforeId": page["nextBeforeId"], "limit": 50})).json()
    assert [row["line"]["text"] for row in older["logs"]] == [f"line {n}" for n in range(1, 15)]
    assert older["nextBeforeId"] is None
    refused = await client.http.get(path, params={"beforeId": place, "tail": 5})
    assert (refused.status_code, refused.json()["code"]) == (400, "logs.before")
