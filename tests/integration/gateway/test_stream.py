"""Ingest from runners, and following logs and metrics on both surfaces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest

from gangline.domain.allocation import Allocation
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.resource import ServiceInstance
from gangline.domain.state import Outcome, State
from gangline.protocol import rpc, wire
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import ingest_pb2
from services.common import keys
from services.common.etcd import EtcdClient, EtcdSettings, Put
from services.gateway.program import run_gateway
from tests.support.gateway import Client, settings_in
from tests.support.stand_in_leader import StandInLeader
from tests.support.wait import until_async, within

SPOOL = "7.1.1/0"


def log_records(first: int, last: int) -> list[ingest_pb2.IngestRecord]:
    return [
        ingest_pb2.IngestRecord(
            sequence=number,
            at=1000.0 + number,
            log=ingest_pb2.LogLine(rank=0, agent_id="a1", stream="stdout", text=f"line {number}"),
        )
        for number in range(first, last + 1)
    ]


def request(records: list[ingest_pb2.IngestRecord], spool_id: str = SPOOL, trial_id: str = "7.1") -> Any:
    return ingest_pb2.IngestRequest(spool_id=spool_id, trial_id=trial_id, records=records)


async def deliver(client: Client, *requests: Any) -> list[int]:
    """Over one stream; the stored sequence numbers."""
    stream = client.ingest.Ingest(iter(requests), metadata=client.runner_metadata("7.1.1"))
    return [answer.stored_sequence async for answer in stream]


@pytest.fixture
async def running(etcd: EtcdClient) -> None:
    """Experiment 7 with the first attempt of trial 7.1, all RUNNING."""
    experiment = Experiment(7, "digits", "alice", "{}", "a" * 64, State.RUNNING)
    trial = Trial("7.1", 7, 1, state=State.RUNNING)
    allocation = Allocation("7.1.1", "7.1", 7, 1, 1, "default", (), state=State.RUNNING)
    await etcd.commit(
        [
            Put(keys.experiment(7), wire.encode(experiment)),
            Put(keys.allocation("7.1.1"), wire.encode(allocation)),
            Put(keys.trial("7.1"), wire.encode(trial)),
        ]
    )


@pytest.fixture
async def seen(running: None, client: Client) -> Client:
    """A client of a gateway that has seen experiment 7."""
    await until_async(lambda: _has_trial(client), "the gateway seeing trial 7.1")
    return client


async def _has_trial(client: Client) -> bool:
    return (await client.http.get("/api/v1/trials/7.1")).status_code == 200


async def collect(pages: AsyncIterator[pb.StreamLogsResponse]) -> list[str]:
    return [log.line.text async for page in pages for log in page.logs]


async def test_repeated_records_are_acknowledged_and_stored_once(seen: Client) -> None:
    assert await deliver(seen, request(log_records(1, 3)), request(log_records(2, 5))) == [3, 5]
    assert await deliver(seen, request(log_records(1, 6)), request([])) == [6, 6]
    pages = seen.gateway.StreamLogs(pb.StreamLogsRequest(experiment_id=7), metadata=seen.metadata)
    assert await collect(pages) == [f"line {number}" for number in range(1, 7)]


async def test_records_out_of_order_end_the_stream(seen: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await deliver(seen, request([*log_records(2, 2), *log_records(1, 1)]))
    assert rpc.error_of(failure.value, "").code == "ingest.order"


async def test_runner_may_not_deliver_for_another_allocation(seen: Client) -> None:
    for bad in (request(log_records(1, 1), spool_id="7.1.2/0"), request(log_records(1, 1), trial_id="8.1")):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await deliver(seen, bad)
        assert failure.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_tail_and_pages(seen: Client) -> None:
    await deliver(seen, request(log_records(1, 1203)))
    tailing = pb.StreamLogsRequest(experiment_id=7, trial_id="7.1", tail=2)
    assert await collect(seen.gateway.StreamLogs(tailing, metadata=seen.metadata)) == ["line 1202", "line 1203"]
    texts: list[str] = []
    after: int | None = 0
    while after is not None:
        page = (await seen.http.get(f"/api/v1/trials/7.1/logs?limit=500&afterId={after}")).json()
        texts += [row["line"]["text"] for row in page["logs"]]
        after = page["nextAfterId"]
    assert texts == [f"line {number}" for number in range(1, 1204)]


async def test_followers_get_lines_as_they_come_and_end_with_the_experiment(
    seen: Client, leader: StandInLeader
) -> None:
    await deliver(seen, request(log_records(1, 2)))
    following = aiter(
        seen.gateway.StreamLogs(pb.StreamLogsRequest(experiment_id=7, follow=True), metadata=seen.metadata)
    )
    first = await within(10, anext(following))
    assert [log.line.text for log in first.logs] == ["line 1", "line 2"]
    await deliver(seen, request(log_records(1, 3)))
    assert [log.line.text for log in (await within(10, anext(following))).logs] == ["line 3"]
    await leader.end(7, Outcome.COMPLETED)
    assert [page async for page in following] == []


async def test_follower_gets_what_a_runner_delivers_after_the_end(seen: Client, leader: StandInLeader) -> None:
    """Leader and gateway hear of the end by two ways; the last lines must not lose that race."""
    may_go_on = asyncio.Event()

    async def requests() -> AsyncIterator[Any]:
        yield request(log_records(1, 1))
        await may_go_on.wait()
        yield request(log_records(2, 2))

    delivering = seen.ingest.Ingest(requests(), metadata=seen.runner_metadata("7.1.1"))
    following = aiter(
        seen.gateway.StreamLogs(pb.StreamLogsRequest(experiment_id=7, follow=True), metadata=seen.metadata)
    )
    await within(10, anext(following))
    await leader.end(7, Outcome.FAILED)
    await until_async(lambda: _has_ended(seen), "the gateway seeing the end")
    may_go_on.set()
    assert await within(10, collect(following)) == ["line 2"]
    assert [answer.stored_sequence async for answer in delivering] == [1, 2]


async def _has_ended(client: Client) -> bool:
    return bool((await client.http.get("/api/v1/experiments/7")).json()["experiment"]["state"] == "TERMINAL")


async def test_sse_follows_and_goes_on_after_the_last_event_id(seen: Client, leader: StandInLeader) -> None:
    await deliver(seen, request(log_records(1, 2)))
    events: list[dict[str, str]] = []
    async with seen.http.stream("GET", "/api/v1/trials/7.1/logs?follow=true") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        async for event in read_events(stream):
            events.append(event)
            if len(events) == 2:
                await deliver(seen, request(log_records(3, 3)))
            if len(events) == 3:
                await leader.end(7, Outcome.COMPLETED)
    assert [event["event"] for event in events] == ["log", "log", "log", "end"]
    assert json.loads(events[2]["data"])["line"]["text"] == "line 3"
    resumed = await seen.http.get("/api/v1/trials/7.1/logs?follow=true", headers={"Last-Event-ID": events[1]["id"]})
    assert resumed.text.count("event: log") == 1
    assert "line 3" in resumed.text


async def read_events(stream: httpx.Response) -> AsyncIterator[dict[str, str]]:
    fields: dict[str, str] = {}
    async for line in stream.aiter_lines():
        name, _, value = line.partition(": ")
        if line and name:
            fields[name] = value
        elif fields:
            yield fields
            fields = {}


async def test_metrics_and_progress_show_in_the_view(seen: Client) -> None:
    point = ingest_pb2.MetricsPoint(group="training", batches_completed=5, metrics={"loss": float("nan"), "acc": 0.5})
    progress = ingest_pb2.ProgressPoint(batches_completed=5, batches_total=10, samples_per_second=320.5)
    await deliver(
        seen,
        request(
            [
                ingest_pb2.IngestRecord(sequence=1, at=1.0, metrics=point),
                ingest_pb2.IngestRecord(sequence=2, at=1.0, progress=progress),
            ]
        ),
    )
    view = await seen.gateway.GetExperiment(pb.GetExperimentRequest(experiment_id=7), metadata=seen.metadata)
    assert view.view.trials[0].training.metrics["acc"] == 0.5
    assert view.view.trials[0].progress == progress
    newest = (await seen.http.get("/api/v1/trials/7.1")).json()["newest"]
    assert newest["training"] == {"group": "training", "batchesCompleted": 5, "metrics": {"loss": None, "acc": 0.5}}
    assert newest["validation"] is None
    rows = (await seen.http.get("/api/v1/experiments/7/metrics?group=training")).json()["metrics"]
    assert [row["point"]["batchesCompleted"] for row in rows] == [5]


async def test_metrics_by_any_group_that_was_reported(seen: Client) -> None:
    points = [
        ingest_pb2.IngestRecord(
            sequence=number, at=1.0, metrics=ingest_pb2.MetricsPoint(group=group, batches_completed=number)
        )
        for number, group in enumerate(("fusion", "training", "my group"), 1)
    ]
    await deliver(seen, request(points))

    async def read(group: str) -> list[int]:
        answer = await seen.http.get("/api/v1/trials/7.1/metrics", params={"group": group})
        return [row["point"]["batchesCompleted"] for row in answer.json()["metrics"]]

    assert [await read(group) for group in ("fusion", "my group", "trainig", "")] == [[1], [3], [], [1, 2, 3]]


async def test_watcher_is_woken_by_progress(seen: Client) -> None:
    watching = aiter(seen.gateway.WatchExperiment(pb.WatchExperimentRequest(experiment_id=7), metadata=seen.metadata))
    await within(10, anext(watching))
    progress = ingest_pb2.ProgressPoint(batches_completed=3, batches_total=10)
    await deliver(seen, request([ingest_pb2.IngestRecord(sequence=1, at=1.0, progress=progress)]))
    assert (await within(10, anext(watching))).view.trials[0].progress.batches_completed == 3


async def test_gateways_that_share_a_database_follow_each_others_rows(
    seen: Client, etcd: EtcdClient, etcd_settings: EtcdSettings, tmp_path: Any, leader: StandInLeader
) -> None:
    other = ServiceInstance("g2", "gateway", "127.0.0.1:1")
    await etcd.commit([Put(keys.alive("gateway", "g2"), wire.encode(other))])
    async with run_gateway(settings_in(tmp_path, etcd_settings)) as addresses:
        client = Client(addresses.grpc, addresses.http)
        following = aiter(
            client.gateway.StreamLogs(pb.StreamLogsRequest(experiment_id=7, follow=True), metadata=client.metadata)
        )
        await deliver(seen, request(log_records(1, 1)))
        assert (await within(10, anext(following))).logs[0].line.text == "line 1"
        await deliver(seen, request(log_records(2, 2)))
        assert (await within(10, anext(following))).logs[0].line.text == "line 2"
        await client.close()
