"""Usage through a real scheduler and real gateways: of ended and running work, over restarts and deletions."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from gangline.domain.state import ExitKind, State
from gangline.domain.usage import MAX_ATTEMPT_USAGES
from tests.integration.scheduler.conftest import Bench
from tests.support.gateway import CLUSTER_TOKEN, Client, GatewayProcess, add_user
from tests.support.scheduler import SchedulerProcess, config_json
from tests.support.scripted_agent import ScriptedAgent
from tests.support.wait import until_async

SECONDS = 30.0


@pytest_asyncio.fixture
async def gateway(bench: Bench) -> AsyncIterator[GatewayProcess]:
    await add_user(bench.etcd)
    process = GatewayProcess(bench.directory, bench.settings.endpoints[0])
    yield process
    await process.end()


async def _report(gateway: GatewayProcess, by: str = "owner", **query: str) -> dict[str, tuple[float, int]]:
    """Returns slot-seconds and number of allocations by key."""
    client = Client(gateway.addresses["grpc"], gateway.addresses["http"])
    answer = await client.http.get("/api/v1/usage", params={"since": "1d", "by": by, **query})
    await client.close()
    assert answer.status_code == 200, answer.text
    entries: list[dict[str, Any]] = answer.json()["entries"]
    assert all(entry["gpuSlotSeconds"] == 0 for entry in entries), "the slots are artificial"
    return {entry["key"]: (entry["cpuSlotSeconds"], entry["numAllocations"]) for entry in entries}


async def _run_one(bench: Bench, agent: ScriptedAgent, slots: int = 1, owner: str = "ann") -> float:
    """Runs an experiment to its end. Returns the slot-seconds that it has used."""
    submitted = await bench.caller.submit(config_json(slots), owner=owner)
    [spec] = await agent.started()
    agent.finish(spec.allocation.id, ExitKind.COMPLETED)
    number = submitted.experiment.id
    await bench.eventually(lambda: bench.experiment(number), lambda record: record.state is State.TERMINAL)
    trial = await bench.trial(f"{number}.1")
    assert trial is not None
    assert trial.timeline.placed_at == trial.attempt_usages[0].started_at
    assert trial.ended_at == trial.attempt_usages[0].ended_at
    return slots * (trial.ended_at - trial.timeline.placed_at)


async def test_ended_and_running_work_by_owner_pool_and_experiment(bench: Bench, gateway: GatewayProcess) -> None:
    await bench.scheduler()
    await gateway.start()
    agent = await bench.agent("a1")
    used = [await _run_one(bench, agent, slots, owner) for slots, owner in ((1, "ann"), (2, "bob"), (2, "ann"))]
    by_experiment = await _report(gateway, "experiment")
    assert {key: round(value[0], 3) for key, value in by_experiment.items()} == {
        str(number): round(seconds, 3) for number, seconds in enumerate(used, 1)
    }
    by_owner = await _report(gateway)
    assert by_owner == {"ann": (used[0] + used[2], 2), "bob": (used[1], 1)}
    await _check_projects(gateway, used)
    await bench.caller.submit(config_json(2), owner="bob")
    await agent.started()
    first = (await _report(gateway))["bob"]
    assert first[1] == 2
    second = (await _report(gateway))["bob"]
    assert second[0] > first[0] >= used[1], "what runs counts until now"
    assert (await _report(gateway, "pool"))["default"][1] == 4
    await _check_days(gateway, sum(used))
    allocation = await bench.allocation("4.1.1")
    assert allocation is not None
    begin = allocation.created_at
    for since, until, expected in ((begin - 0.5, begin + 0.0005, 0.001), (begin + 0.0005, begin + 0.001, 0.001)):
        cut = await _report(gateway, "experiment", since=_iso(since), until=_iso(until))
        assert abs(cut["4"][0] - expected) < 1e-4, "cut at the borders of the period"


async def _check_projects(gateway: GatewayProcess, used: list[float]) -> None:
    """Usage follows an experiment that is moved into another project."""
    assert _rounded(await _report(gateway, "project")) == {"Uncategorized/Uncategorized": (round(sum(used), 3), 3)}
    # An editor moves no experiment of another user into another workspace.
    client = Client(gateway.addresses["grpc"], gateway.addresses["http"], CLUSTER_TOKEN)
    workspace = (await client.http.post("/api/v1/workspaces", json={"name": "lab"})).json()["workspace"]
    path = f"/api/v1/workspaces/{workspace['id']}/projects"
    project = (await client.http.post(path, json={"name": "vision"})).json()["project"]
    answer = await client.http.post("/api/v1/experiments/2/move", json={"destinationProjectId": project["id"]})
    assert answer.status_code == 200, answer.text
    await client.close()
    moved, rest = (round(used[1], 3), 1), (round(used[0] + used[2], 3), 2)
    report = await _report(gateway, "project")
    assert _rounded(report) == {"lab/vision": moved, "Uncategorized/Uncategorized": rest}
    assert _rounded(await _report(gateway, "workspace")) == {"lab": moved, "Uncategorized": rest}


def _rounded(report: dict[str, tuple[float, int]]) -> dict[str, tuple[float, int]]:
    return {key: (round(seconds, 3), count) for key, (seconds, count) in report.items()}


async def _check_days(gateway: GatewayProcess, ended_seconds: float) -> None:
    """The day of the test has all of it, and the day after has not begun."""
    client = Client(gateway.addresses["grpc"], gateway.addresses["http"])
    today = datetime.now(UTC).date()
    days = {"startDate": str(today - timedelta(days=2)), "endDate": str(today + timedelta(days=1))}
    entries = (await client.http.get("/api/v1/resources/allocation/aggregated", params=days)).json()["resourceEntries"]
    assert [entry["periodStart"] for entry in entries] == [
        str(today - timedelta(days=2)), str(today - timedelta(days=1)), str(today),
    ]  # fmt: skip
    total = sum(entry["seconds"] for entry in entries)
    assert total > ended_seconds
    assert {name for entry in entries for name in entry["byUsername"]} == {"ann", "bob"}
    month = {**days, "period": "RESOURCE_ALLOCATION_AGGREGATION_PERIOD_MONTHLY"}
    months = (await client.http.get("/api/v1/resources/allocation/aggregated", params=month)).json()["resourceEntries"]
    assert months[0]["periodStart"].endswith("-01")
    assert sum(entry["byResourcePool"]["default"] for entry in months if entry["seconds"]) >= total
    for bad in ({"endDate": "2020-01-01"}, {"startDate": "2020-01-01"}, {"period": "WEEKLY"}, {"endDate": "soon"}):
        answer = await client.http.get("/api/v1/resources/allocation/aggregated", params={**days, **bad})
        assert answer.status_code == 400, answer.text
    await client.close()


async def test_usage_survives_gateways_that_are_away_and_the_deletion(bench: Bench, gateway: GatewayProcess) -> None:
    """An attempt begins and ends while no gateway runs, the leader changes, and the experiments are deleted."""
    leader = await bench.scheduler("s1")
    await gateway.start()
    agent = await bench.agent("a1")
    used = await _run_one(bench, agent)
    await gateway.end()
    used += await _run_one(bench, agent)
    leader.end()
    await bench.scheduler("s2")
    used += await _run_one(bench, agent)
    await gateway.start()
    assert await _report(gateway) == {"ann": (used, 3)}
    for number in (1, 2, 3):
        await bench.caller.delete_experiment(number)
        await _gone(bench, number)
    assert await _report(gateway) == {"ann": (used, 3)}
    assert _rounded(await _report(gateway, "project")) == {"(deleted experiments)": (round(used, 3), 3)}
    await gateway.end()
    await gateway.start()
    assert await _report(gateway) == {"ann": (used, 3)}


async def test_two_gateways_write_one_row(bench: Bench, gateway: GatewayProcess) -> None:
    await bench.scheduler()
    await gateway.start()
    (bench.directory / "second").mkdir()
    second = GatewayProcess(
        bench.directory / "second",
        bench.settings.endpoints[0],
        **{"storage-url": str(bench.directory / "storage"), "database-url": gateway.flags["database-url"]},
    )
    await second.start()
    try:
        agent = await bench.agent("a1")
        used = sum([await _run_one(bench, agent) for _ in range(4)])
        for process in (gateway, second):
            assert await _report(process) == {"ann": (used, 4)}
    finally:
        await second.end()
    assert _count_rows(bench.directory / "gateway.db") == 4


async def test_a_trial_keeps_its_newest_attempts_for_a_gateway_that_is_away(
    bench: Bench, gateway: GatewayProcess
) -> None:
    await bench.scheduler("s1")
    agent = await bench.agent("a1")
    num_attempts = MAX_ATTEMPT_USAGES + 2
    await bench.caller.submit(config_json(max_restarts=num_attempts), owner="ann")
    for attempt in range(1, num_attempts + 1):
        allocation_id = f"1.1.{attempt}"

        async def is_started(wanted: str = allocation_id) -> bool:
            return wanted in agent.journal

        await until_async(is_started, f"attempt {attempt}", SECONDS)
        agent.finish(allocation_id, ExitKind.PREEMPTED if attempt < num_attempts else ExitKind.COMPLETED)
    await bench.eventually(lambda: bench.experiment(1), lambda record: record.state is State.TERMINAL)
    trial = await bench.trial("1.1")
    assert trial is not None
    assert [usage.attempt for usage in trial.attempt_usages] == list(range(3, num_attempts + 1))
    await gateway.start()
    assert (await _report(gateway))["ann"][1] == MAX_ATTEMPT_USAGES


async def test_the_counter_of_slot_seconds_follows_the_leader(bench: Bench) -> None:
    """Each scheduler counts its own term only, so the sum over both is at most the time for which slots were held."""
    leader, standby = await bench.scheduler("s1"), await bench.scheduler("s2")
    agent = await bench.agent("a1")
    await bench.caller.submit(config_json(2), owner="ann")
    [spec] = await agent.started()

    async def counted_by(scheduler: SchedulerProcess, seconds: float) -> float:
        async def is_enough() -> float:
            counted = await _slot_seconds(scheduler)
            return counted.get(("default", "ann"), 0.0) if sum(counted.values()) >= seconds else 0.0

        return await until_async(is_enough, f"{seconds} slot-seconds of {scheduler.name}", SECONDS)

    first = await counted_by(leader, 2.0)
    assert await _slot_seconds(standby) == {}
    leader.end()
    await counted_by(standby, 2.0)
    agent.finish(spec.allocation.id, ExitKind.COMPLETED)
    await bench.eventually(lambda: bench.experiment(1), lambda record: record.state is State.TERMINAL)
    second = (await _slot_seconds(standby))["default", "ann"]
    trial = await bench.trial("1.1")
    assert trial is not None
    [usage] = trial.attempt_usages
    held = usage.cpu_slots * (usage.ended_at - usage.started_at)
    assert 4.0 <= first + second <= held + 0.1
    # Nothing is held, so nothing is counted.
    await bench.caller.submit(config_json(1), owner="bob")
    await counted_by(standby, second + 0.5)
    assert (await _slot_seconds(standby))["default", "ann"] == second


async def _slot_seconds(scheduler: SchedulerProcess) -> dict[tuple[str, str], float]:
    """Returns the counter by pool and owner."""
    async with httpx.AsyncClient(timeout=10) as http:
        text = (await http.get(f"http://{scheduler.metrics_address}/metrics")).text
    return {
        (sample.labels["pool"], sample.labels["owner"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "gangline_scheduler_slot_seconds_total"
    }


async def test_bad_requests_are_refused(bench: Bench, gateway: GatewayProcess) -> None:
    await bench.scheduler()
    await gateway.start()
    client = Client(gateway.addresses["grpc"], gateway.addresses["http"])
    for query, code in (
        ({"since": "soon"}, "usage.when"),
        ({"since": "1d", "until": "2d"}, "usage.period"),
        ({"since": "1d", "by": "user"}, "usage.by"),
        ({}, "request.invalid"),
    ):
        answer = await client.http.get("/api/v1/usage", params=query)
        assert (answer.status_code, answer.json()["code"]) == (400, code)
    await client.close()


def _iso(at: float) -> str:

    return datetime.fromtimestamp(at, UTC).isoformat()


async def _gone(bench: Bench, number: int) -> None:
    async def is_gone() -> bool:
        return await bench.experiment(number) is None

    await until_async(is_gone, f"the end of experiment {number}", SECONDS)


def _count_rows(database: Path) -> int:
    with closing(sqlite3.connect(database, timeout=20)) as connection:
        return int(connection.execute("select count(*) from allocation_usage").fetchone()[0])
