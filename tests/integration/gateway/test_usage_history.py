"""Usage by day and month over HTTP, by every key, in JSON and in CSV that no spreadsheet runs."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gangline.domain.usage import AllocationUsage, AttemptUsage
from gangline.protocol import wire
from services.common import keys
from services.common.etcd import EtcdClient, Put
from services.gateway.history.usage import store_usage
from tests.support.gateway import Client
from tests.support.many_experiments import make_experiment
from tests.support.wait import until_async

HISTORY = "/api/v1/usage/history"
# Midnight of 2023-11-14, UTC.
DAY = 1_699_920_000.0
FORMULA = '=cmd|"/c calc"!A1,\n'


@pytest.fixture
async def used(etcd: EtcdClient, client: Client, tmp_path: Path) -> Client:
    """A client of a gateway with the usage of two experiments on two days, of which one ends at midnight."""
    labels = {1: ("a", FORMULA), 2: ()}
    await etcd.commit(
        [
            Put(keys.experiment(number), wire.encode(replace(make_experiment(number), labels=labels[number])))
            for number in labels
        ]
    )
    engine = sa.create_engine(f"sqlite:///{tmp_path}/gateway.db")
    usages = [
        AllocationUsage("1.1.1", 1, "ann", AttemptUsage(1, "p", 0, 2, DAY + 86_300, DAY + 86_500)),
        AllocationUsage("2.1.1", 2, "bob", AttemptUsage(1, "q", 1, 0, DAY, DAY + 86_400)),
    ]
    store_usage(engine, usages)
    engine.dispose()

    async def is_there() -> bool:
        return (await client.http.get("/api/v1/experiments/2")).status_code == 200

    await until_async(is_there, "the gateway seeing the experiments")
    return client


async def points(client: Client, **params: Any) -> list[tuple[str, str, float]]:
    params = {"startDate": "2023-11-14", "endDate": "2023-11-15", **params}
    answer = await client.http.get(HISTORY, params=params)
    assert answer.status_code == 200, answer.text
    return [(each["periodStart"], each["key"], each["slotSeconds"]) for each in answer.json()["points"]]


async def test_usage_of_each_day(used: Client) -> None:
    first, second = "2023-11-14", "2023-11-15"
    assert await points(used) == [(first, "bob", 86_400), (first, "ann", 200), (second, "ann", 200)]
    assert await points(used, by="pool", endDate=first) == [(first, "q", 86_400), (first, "p", 200)]
    assert await points(used, by="label", startDate=second) == [(second, "a", 200), (second, FORMULA, 200)]
    assert ("2023-11-14", "(no label)", 86_400) in await points(used, by="label")
    assert await points(used, monthly="true") == [("2023-11-01", "bob", 86_400), ("2023-11-01", "ann", 400)]


async def test_csv_has_the_same_rows_and_no_formula(used: Client) -> None:
    params = {"startDate": "2023-11-14", "endDate": "2023-11-15", "by": "label", "csv": "true"}
    answer = await used.http.get(HISTORY, params=params)
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.reader(io.StringIO(answer.text, newline="")))
    assert rows == [
        ["period_start", "label", "slot_seconds"],
        ["2023-11-14", "(no label)", "86400.000"],
        ["2023-11-14", "a", "200.000"],
        ["2023-11-14", f"'{FORMULA}", "200.000"],
        ["2023-11-15", "a", "200.000"],
        ["2023-11-15", f"'{FORMULA}", "200.000"],
    ]


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"by": "shoe"}, "usage.by"),
        ({"startDate": "2023-11-16"}, "usage.period"),
        ({"startDate": "0001-01-01"}, "usage.periods"),
        ({"startDate": "0001-01-01", "monthly": "true"}, "usage.periods"),
    ],
)
async def test_what_is_refused(client: Client, params: dict[str, str], code: str) -> None:
    params = {"startDate": "2023-11-14", "endDate": "2023-11-15", **params}
    answer = await client.http.get(HISTORY, params=params)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
