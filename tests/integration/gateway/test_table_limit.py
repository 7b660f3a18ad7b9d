"""What a hostile or careless client of the tables gets: refusals, bounds, and values that JSON or UTF-8 cannot hold."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from gangline.protocol import wire
from services.common import keys
from services.common.etcd import EtcdClient, Put
from services.gateway.mirror.caller import MAX_REQUEST_ID
from services.gateway.table.row_index import RowIndex
from services.gateway.table.table import STEP_SECONDS, TableName, TableQuery, Tables
from tests.support.gateway import Client
from tests.support.many_experiments import make_experiment, make_trial, put_experiments
from tests.support.stand_in_leader import StandInLeader
from tests.support.stand_in_mirror import StandInMirror
from tests.support.wait import until_async

EXPERIMENTS, TRIALS, BULK = "/api/v1/tables/experiments", "/api/v1/tables/trials", "/api/v1/bulk/experiments"
T = TypeVar("T")


@pytest.fixture
async def filled(etcd: EtcdClient, client: Client) -> Client:
    """A client of a gateway that has seen 30 experiments. The trial of the fifth has odd hyperparameters."""
    await put_experiments(etcd, 30)
    odd = '{"big": ' + "9" * 400 + ', "inf": 1e999, "text": "<b>\\u0000\\u001b", "deep": ' + "[" * 90 + "]" * 90 + "}"
    trial = replace(make_trial(5), hyperparameters_json=odd, best_validation=float("inf"))
    await etcd.commit([Put(keys.trial("5.1"), wire.encode(trial))])

    async def is_there() -> bool:
        page = (await client.http.get(EXPERIMENTS, params={"filter": "hp.big > 1 and id > 0"})).json()
        return bool(page["total"])

    await until_async(is_there, "the gateway seeing trial 5.1")
    return client


async def test_a_snapshot_is_of_its_query_alone(filled: Client) -> None:
    first = (await filled.http.get(EXPERIMENTS, params={"limit": 1})).json()
    for path, params in (
        (TRIALS, {}),
        (EXPERIMENTS, {"filter": "id = 3"}),
        (EXPERIMENTS, {"sort": "id"}),
    ):
        answer = await filled.http.get(path, params={**params, "snapshot": first["snapshot"], "limit": 2})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert page["snapshot"] != first["snapshot"]
        assert page["total"] == (1 if "filter" in params else 30)
    rows = (await filled.http.get(EXPERIMENTS, params={"sort": "id", "snapshot": first["snapshot"]})).json()["rows"]
    assert [row["id"] for row in rows] == list(range(1, 31))


async def test_values_that_json_does_not_have(filled: Client) -> None:
    page = await filled.http.get(
        EXPERIMENTS, params={"filter": "id = 5", "fields": "best,hp.big,hp.inf,hp.text,hp.none"}
    )
    assert page.json()["rows"] == [
        {"id": 5, "best": None, "hp.big": int("9" * 400), "hp.inf": None, "hp.text": "<b>\0\x1b", "hp.none": None}
    ]
    # Filters and sorting see the value that is stored.
    for wanted in ("best = inf", "hp.big > 1e300", "hp.inf = inf", 'hp.text ~ "^<b>"'):
        page = await filled.http.get(EXPERIMENTS, params={"filter": wanted})
        assert [row["id"] for row in page.json()["rows"]] == [5], wanted
    page = await filled.http.get(EXPERIMENTS, params={"sort": "-best", "limit": 1})
    assert [row["id"] for row in page.json()["rows"]] == [5]


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"filter": 'name ~ "\\ud800"'}, "filter.pattern"),
        ({"filter": 'hp."a\\nb" < null'}, "filter.operator"),
        ({"fields": ",".join(f"hp.{number}" for number in range(4000))}, "table.fields"),
        ({"filter": "(" * 3000}, "filter.depth"),
        ({"filter": "startTime > 99999999999999d"}, "filter.value"),
        ({"fields": "hp." + "x" * 300}, "table.field"),
    ],
)
async def test_what_is_refused_in_one_line(filled: Client, params: dict[str, str], code: str) -> None:
    answer = await filled.http.get(EXPERIMENTS, params=params)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (400, code)
    assert len(problem["detail"].splitlines()) == 1
    assert len(problem["detail"]) <= 1300


async def test_an_order_without_conditions_is_refused(filled: Client, leader: StandInLeader) -> None:
    for wanted in ({"filter": " "}, {"filter": "\n"}, {"filter": "id > 0", "ids": [1]}, {}):
        answer = await filled.http.post(BULK, json={"action": "LABEL", "addLabels": ["x"], **wanted})
        assert (answer.status_code, answer.json()["code"]) == (400, "bulk.which"), wanted
    assert not leader.experiment_changes


async def test_an_order_may_have_the_longest_request_id(filled: Client, leader: StandInLeader) -> None:
    headers = {"Idempotency-Key": "x" * MAX_REQUEST_ID}
    order = {"action": "LABEL", "addLabels": ["x"], "ids": [1, 2]}
    answers = [(await filled.http.post(BULK, json=order, headers=headers)).json() for _ in range(2)]
    assert [answer["numChanged"] for answer in answers] == [2, 2]
    ids = {change.request_id for change in leader.experiment_changes}
    assert len(ids) == 2
    assert all(len(request_id) <= MAX_REQUEST_ID for request_id in ids)
    refused = await filled.http.post(BULK, json=order, headers={"Idempotency-Key": "x" * (MAX_REQUEST_ID + 1)})
    assert refused.json()["code"] == "request.long_id"


class Clock:
    now = 1e9

    def __call__(self) -> float:
        return self.now


def tables_of(num_experiments: int, now: Callable[[], float] = time.time) -> Tables:
    mirror = StandInMirror()
    config_json = make_experiment(1).config_json
    for number in range(1, num_experiments + 1):
        mirror.put(keys.experiment(number), make_experiment(number, config_json))
        mirror.put(keys.trial(f"{number}.1"), make_trial(number))
    return Tables(RowIndex(mirror), lambda: mirror.state.revision, now)


async def count_turns(work: Awaitable[T]) -> tuple[T, int, float]:
    """Returns how often another task ran meanwhile, and the seconds that the work took of this thread."""
    num_turns = 0

    async def turn() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(turn())
    await asyncio.sleep(0)
    # A garbage collection visits all that the test has made, within one step. It is no part of the work.
    gc.disable()
    try:
        num_turns, began = 0, time.thread_time()
        result = await work
        used = time.thread_time() - began
    finally:
        gc.enable()
        other.cancel()
    return result, num_turns, used


@pytest.mark.parametrize(
    ("query", "num_rows"),
    [
        # After a start, these parse all configurations.
        (TableQuery(TableName.EXPERIMENTS, sort="pool"), 2000),
        (TableQuery(TableName.EXPERIMENTS, "pool = default"), 2000),
        # So many that they take several steps also on a fast machine.
        (TableQuery(TableName.TRIALS, sort="-hp.lr"), 10_000),
    ],
    ids=["sort", "filter", "trials"],
)
async def test_long_work_lets_other_requests_in(query: TableQuery, num_rows: int) -> None:
    tables = tables_of(num_rows)
    tables.view(TableQuery(TableName.EXPERIMENTS)).find(1)
    result, num_turns, used = await count_turns(tables.query(query))
    assert len(result.ids) == num_rows
    # Half of the work may be the one sort itself; each step ends with the row in which it is over.
    assert num_turns >= used / STEP_SECONDS / 4


async def test_a_large_page_lets_other_requests_in() -> None:
    tables = tables_of(1000)
    query = TableQuery(TableName.EXPERIMENTS)
    result = await tables.query(query)
    fields = [f"hp.a{number}.b" for number in range(200)]
    page, num_turns, used = await count_turns(tables.read_page(query, result, fields, 0, 1000))
    assert len(page.rows) == 1000
    assert num_turns >= used / STEP_SECONDS / 4


async def test_one_query_of_a_caller_is_worked_on_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # A step ends with each row, so that no query is over before the others have begun.
    monkeypatch.setattr("services.gateway.table.table.STEP_SECONDS", 0.0)
    tables = tables_of(2000)
    order: list[str] = []

    async def ask(caller: str, number: int) -> None:
        await tables.query(TableQuery(TableName.EXPERIMENTS, f"id != -{number}", "name,best,id"), caller=caller)
        order.append(caller)

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(ask("mallory", number))
        group.create_task(ask("alice", 9))
    assert order.index("alice") <= 2


async def test_kept_results_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.table.table.MAX_KEPT_IDS", 250)
    monkeypatch.setattr("services.gateway.table.table.MAX_RESULTS", 5)
    clock = Clock()
    tables = tables_of(100, clock)
    for wanted, num_asked, num_kept in (("id > 0", 3, 2), ("id = 1", 7, 5)):
        queries = [TableQuery(TableName.EXPERIMENTS, f"{wanted} and id != -{number}") for number in range(num_asked)]
        snapshots = [(await tables.query(query)).snapshot for query in queries]
        # In another minute a query makes a new result, unless it names the kept one.
        clock.now += 60
        newest_first = [*zip(queries, snapshots, strict=True)][::-1]
        is_kept = [(await tables.query(query, name)).snapshot == name for query, name in newest_first]
        assert is_kept == [True] * num_kept + [False] * (num_asked - num_kept)
