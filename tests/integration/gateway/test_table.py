"""Tables of experiments and trials, and actions on all that match, on a real gateway with 10,000 experiments."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from services.common import keys
from services.common.etcd import Delete, EtcdClient
from tests.support.gateway import Client
from tests.support.many_experiments import OWNERS, RARE, make_trial, put_experiments, renamed
from tests.support.stand_in_leader import StandInLeader
from tests.support.wait import until_async

NUM = 10_000
EXPERIMENTS, TRIALS = "/api/v1/tables/experiments", "/api/v1/tables/trials"


async def read(client: Client, path: str, **params: Any) -> dict[str, Any]:
    answer = await client.http.get(path, params=params)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


async def wait_for(client: Client, number: int) -> None:
    async def is_there() -> bool:
        return bool((await read(client, EXPERIMENTS, filter=f"id = {number}", limit=0))["total"] == 1)

    await until_async(is_there, f"the gateway seeing experiment {number}")


def best_of(number: int) -> float:
    return make_trial(number).best_validation or 0.0


async def test_a_table_of_10000_experiments(etcd: EtcdClient, client: Client) -> None:
    await put_experiments(etcd, NUM)
    await wait_for(client, NUM)

    page = await read(client, EXPERIMENTS)
    assert page["total"] == NUM
    assert [row["id"] for row in page["rows"]] == list(range(NUM, NUM - 100, -1))
    assert page["rows"][0]["startTime"].endswith("Z")

    # Chosen fields, a filter over hyperparameters, two sort keys.
    wanted = f"hp.optimizer = adam and (hp.lr <= 1 or labels = {RARE}) and owner in (ann, bob)"
    expected = [n for n in range(1, NUM + 1) if n % 2 and n <= 1000 and OWNERS[n % 3] in ("ann", "bob")]
    expected.sort(key=lambda n: (OWNERS[n % 3], -best_of(n)))
    page = await read(client, EXPERIMENTS, filter=wanted, sort="owner,-best", fields="owner,best,hp.lr,validation.loss")
    assert page["total"] == len(expected)
    assert [row["id"] for row in page["rows"]] == expected[:100]
    first = expected[0]
    assert page["rows"][0] == {
        "id": first, "owner": OWNERS[first % 3], "best": best_of(first), "hp.lr": first / 1000,
        "validation.loss": 1 / first,
    }  # fmt: skip

    # Further pages are of the same list while rows change; values are those of now, and deleted rows are absent.
    second, third = expected[100], expected[101]
    await etcd.commit([renamed(second, "another"), Delete(keys.experiment(third))])
    await wait_for_total(client, NUM - 1)
    following = await read(
        client, EXPERIMENTS, filter=wanted, sort="owner,-best", fields="name", offset=100, snapshot=page["snapshot"]
    )
    assert following["snapshot"] == page["snapshot"]
    assert following["total"] == len(expected)
    assert [row["id"] for row in following["rows"]] == [second, *expected[102:200]]
    assert following["rows"][0]["name"] == "another"
    assert (await read(client, EXPERIMENTS, filter=wanted, limit=0))["total"] == len(expected) - 1

    # A snapshot that no gateway has gives a new list, which the answer names.
    new = await read(client, EXPERIMENTS, filter=wanted, snapshot="unknown", limit=1)
    assert new["snapshot"] not in ("unknown", page["snapshot"])

    # Trials of all experiments, and of one.
    page = await read(client, TRIALS, filter="batches > 9990", sort="-batches", fields="hp.lr,experimentName", limit=3)
    assert page["total"] == 10
    assert page["rows"][0] == {"id": "10000.1", "hp.lr": 10.0, "experimentName": "digits-10000"}
    assert (await read(client, TRIALS, experimentId=7))["rows"][0]["id"] == "7.1"

    # Ages and times.
    assert (await read(client, EXPERIMENTS, filter="startTime > 1d"))["total"] == 0
    assert (await read(client, EXPERIMENTS, filter='endTime <= "2023-11-14T22:14:50+00:00"'))["total"] == 1


async def wait_for_total(client: Client, total: int) -> None:
    async def is_total() -> bool:
        return bool((await read(client, EXPERIMENTS, limit=0))["total"] == total)

    await until_async(is_total, f"the gateway seeing {total} experiments")


async def test_fields_and_refusals(etcd: EtcdClient, client: Client) -> None:
    await put_experiments(etcd, 3)
    await wait_for(client, 3)
    listed = await read(client, f"{EXPERIMENTS}/fields", search="L")
    names = [field["name"] for field in listed["fields"]]
    assert {"labels", "hp.lr", "hp.global_batch_size", "validation.loss"} <= set(names)
    assert listed["total"] == len(names)
    paged = await read(client, f"{EXPERIMENTS}/fields", search="L", offset=2, limit=3)
    assert [field["name"] for field in paged["fields"]] == names[2:5]
    for params, code in (
        ({"filter": "nam = a"}, "table.field"),
        ({"fields": "nam"}, "table.field"),
        ({"sort": "labels"}, "table.sort"),
        ({"sort": "id,id,id,id,id,id"}, "table.sort"),
        ({"filter": "state = RUNING"}, "filter.value"),
        ({"filter": "id = 1 and"}, "filter.syntax"),
        ({"limit": 1001}, "request.invalid"),
    ):
        answer = await client.http.get(EXPERIMENTS, params=params)
        assert (answer.status_code // 100, answer.json()["code"]) == (4, code), params
    async with asyncio.timeout(5):
        nobody = await client.http.get(EXPERIMENTS, headers={"Authorization": "Bearer nobody"})
    assert nobody.status_code == 401


@pytest.mark.usefixtures("leader")
async def test_an_action_on_all_that_match(etcd: EtcdClient, client: Client, leader: StandInLeader) -> None:
    await put_experiments(etcd, 30)
    await wait_for(client, 30)
    path, headers = "/api/v1/bulk/experiments", {"Idempotency-Key": "once"}
    order = {"action": "LABEL", "filter": "outcome = FAILED", "addLabels": ["bad"]}

    counted = (await client.http.post(path, json={**order, "dryRun": True})).json()
    assert (counted["numMatching"], counted["results"], counted["numOwned"]) == (3, [], 1)
    assert (await read(client, EXPERIMENTS, filter="labels = bad"))["total"] == 0

    refused = await client.http.post(path, json={**order, "expected": 2})
    assert (refused.status_code, refused.json()["code"]) == (409, "bulk.more")
    assert not leader.experiment_changes

    done = (await client.http.post(path, json={**order, "expected": 3}, headers=headers)).json()
    assert [item["id"] for item in done["results"]] == [10, 20, 30]
    assert (done["numChanged"], done["nextAfterId"]) == (3, None)
    assert {change.request_id for change in leader.experiment_changes} == {"once-10", "once-20", "once-30"}
    assert (await read(client, EXPERIMENTS, filter="labels = bad"))["total"] == 3

    # An error of one does not stop the others.
    mixed = (await client.http.post(path, json={**order, "filter": "", "ids": [999, 1]})).json()
    assert [(item["id"], item["code"] is None) for item in mixed["results"]] == [(1, True), (999, False)]
    assert mixed["numChanged"] == 1

    for body, code in (
        ({"action": "KILL"}, "bulk.which"),
        ({"action": "MOVE", "filter": "id > 0"}, "bulk.move"),
        ({"action": "LABEL", "filter": "id > 0"}, "bulk.label"),
        ({"action": "KILL", "filter": "id >"}, "filter.syntax"),
    ):
        answer = await client.http.post(path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (400, code), body


async def test_a_long_order_goes_on_after_the_last_id(
    etcd: EtcdClient, client: Client, leader: StandInLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.usecase.table.MAX_BULK", 4)
    await put_experiments(etcd, 10)
    await wait_for(client, 10)
    order: dict[str, Any] = {"action": "LABEL", "filter": "id > 0", "addLabels": ["seen"], "afterId": 0}
    changed: list[int] = []
    while order["afterId"] is not None:
        answer = (await client.http.post("/api/v1/bulk/experiments", json=order)).json()
        changed += [item["id"] for item in answer["results"]]
        order["afterId"] = answer["nextAfterId"]
    assert changed == list(range(1, 11))
    assert len(leader.experiment_changes) == 10


async def test_the_effect_of_a_change_of_the_queue(etcd: EtcdClient, client: Client, leader: StandInLeader) -> None:
    """The planner is the real one, in a process of its own."""
    await put_experiments(etcd, 3)
    await wait_for(client, 3)
    task = {"slots_needed": 2, "priority": 50}
    held = {"allocated_on": {"a1": 2}, "occupies": True}
    tasks = [
        {**task, **held, "id": "1.1.1", "group": "experiment 1", "queue_position": 1},
        {**task, "id": "2.1", "group": "experiment 2", "queue_position": 2},
        {**task, "id": "3.1", "group": "experiment 3", "queue_position": 3},
    ]
    agents = [{"id": "a1", "slots": 2}]
    leader.snapshot_json = json.dumps(
        {"policy": "priority", "now": 100, "agents": agents, "groups": [], "tasks": tasks}
    )
    path = "/api/v1/job-queues/preview"
    moved = (await client.http.post(path, json={"jobId": 3, "aheadOf": 2})).json()
    assert (moved["pool"], moved["numWaiting"]) == ("default", 2)
    first, second = moved["differences"]
    places = {each["trialId"]: (each["before"]["queuePlace"], each["after"]["queuePlace"]) for each in (first, second)}
    assert places == {"3.1": (2, 1), "2.1": (1, 2)}
    assert first["after"]["etaAt"] < second["after"]["etaAt"]
    urgent = (await client.http.post(path, json={"jobId": 3, "priority": 1})).json()["differences"]
    assert [(each["trialId"], each["after"]["isStopping"]) for each in urgent][-1] == ("1.1", True)
    refused = await client.http.post(path, json={"jobId": 3, "aheadOf": 9})
    assert (refused.status_code, refused.json()["code"]) == (409, "preview.anchor")
    assert not leader.experiment_changes
