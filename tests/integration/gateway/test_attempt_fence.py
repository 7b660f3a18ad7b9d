"""The deliveries and fetches that runners of superseded attempts may still make."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import grpc
import pytest

from gangline.domain.allocation import Allocation, Member, Timeline
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.resource import Agent
from gangline.domain.state import AgentState, State
from gangline.protocol import rpc, wire
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import ingest_pb2
from services.common import keys
from services.common.access.security import allocation_token, drain_token
from services.common.etcd import Delete, EtcdClient, Put
from services.common.state_folder import StateFolder
from services.gateway.mirror import attempt_fence
from services.gateway.mirror.attempt_fence import LOG_LINGER_SECONDS
from services.trial_runner.delivery import drainer
from services.trial_runner.delivery.spool import Spool
from tests.integration.gateway.test_stream import collect
from tests.support.gateway import CLUSTER_TOKEN, Client
from tests.support.wait import until_async

BEGAN_AT = 2000.0
SHA256 = "a" * 64


class World:
    """Trial 7.1, whose attempts a test begins and ends."""

    def __init__(self, etcd: EtcdClient, client: Client) -> None:
        self.etcd = etcd
        self.client = client

    async def begin(self, attempt: int, placed_at: float) -> None:
        """The attempt is placed, and the one before it is gone, in one transaction as the leader's."""
        allocation = Allocation(f"7.1.{attempt}", "7.1", 7, attempt, 1, "default", (Member("a1", 0, ("a1/0",)),))
        trial = Trial(
            "7.1", 7, 1, state=State.STARTING, attempts=attempt, timeline=Timeline(queued_at=1.0, placed_at=placed_at)
        )
        puts = [
            Put(keys.experiment(7), wire.encode(Experiment(7, "digits", "alice", "{}", SHA256, State.RUNNING))),
            Put(keys.trial("7.1"), wire.encode(trial)),
            Put(keys.allocation(allocation.id), wire.encode(allocation)),
        ]
        gone = [Delete(keys.allocation(f"7.1.{attempt - 1}"))] if attempt > 1 else []
        await self.etcd.commit([*puts, *gone])
        await until_async(lambda: self._sees(attempt), f"the gateway seeing attempt {attempt}")

    async def end(self, attempt: int) -> None:
        await self.etcd.commit([Delete(keys.allocation(f"7.1.{attempt}"))])
        await until_async(lambda: self._says_over(attempt), f"the gateway seeing the end of attempt {attempt}")

    async def deliver(self, attempt: int, *records: ingest_pb2.IngestRecord) -> ingest_pb2.IngestResponse:
        request = ingest_pb2.IngestRequest(spool_id=f"7.1.{attempt}/0", trial_id="7.1", records=records)
        metadata = self.client.runner_metadata(f"7.1.{attempt}")
        answer: ingest_pb2.IngestResponse
        [answer] = [answer async for answer in self.client.ingest.Ingest(iter([request]), metadata=metadata)]
        return answer

    async def deliver_as(self, token: str, *records: ingest_pb2.IngestRecord) -> ingest_pb2.IngestResponse:
        request = ingest_pb2.IngestRequest(spool_id="7.1.1/0", trial_id="7.1", records=records)
        answers = self.client.ingest.Ingest(iter([request]), metadata=rpc.token_metadata(token))
        answer: ingest_pb2.IngestResponse
        [answer] = [answer async for answer in answers]
        return answer

    async def lines(self) -> list[str]:
        pages = self.client.gateway.StreamLogs(pb.StreamLogsRequest(experiment_id=7), metadata=self.client.metadata)
        return await collect(pages)

    async def metrics(self) -> list[int]:
        pages = self.client.gateway.StreamMetrics(
            pb.StreamMetricsRequest(experiment_id=7), metadata=self.client.metadata
        )
        return [entry.point.batches_completed async for page in pages for entry in page.metrics]

    async def _sees(self, attempt: int) -> bool:
        answer = await self.client.http.get("/api/v1/trials/7.1")
        return answer.status_code == 200 and answer.json()["trial"]["attempts"] == attempt

    async def _says_over(self, attempt: int) -> bool:
        return bool((await self.deliver(attempt)).over_reason)


@pytest.fixture
async def world(etcd: EtcdClient, client: Client) -> World:
    return World(etcd, client)


def metric(sequence: int, at: float, batches: int) -> ingest_pb2.IngestRecord:
    point = ingest_pb2.MetricsPoint(group="training", batches_completed=batches, metrics={"loss": 1.0})
    return ingest_pb2.IngestRecord(sequence=sequence, at=at, metrics=point)


def line(sequence: int, at: float, text: str) -> ingest_pb2.IngestRecord:
    log = ingest_pb2.LogLine(rank=0, agent_id="a1", stream="stdout", text=text)
    return ingest_pb2.IngestRecord(sequence=sequence, at=at, log=log)


async def test_what_a_superseded_attempt_records_beside_the_next_one_is_left_out(world: World) -> None:
    await world.begin(1, placed_at=1000.0)
    answer = await world.deliver(1, metric(1, 1500.0, 1))
    assert (answer.stored_sequence, answer.over_reason) == (1, "")
    await world.begin(2, placed_at=BEGAN_AT)
    answer = await world.deliver(
        1,
        metric(2, BEGAN_AT - 1, 2),
        line(3, BEGAN_AT + LOG_LINGER_SECONDS - 1, "its last words"),
        metric(4, BEGAN_AT + 1, 3),
        line(5, BEGAN_AT + LOG_LINGER_SECONDS + 1, "of nobody's attempt"),
    )
    # Acknowledged all the same: its runner has nothing to send again.
    assert answer.stored_sequence == 5
    assert answer.over_reason == "attempt 2 of trial 7.1 has taken the place of attempt 1"
    assert (await world.deliver(2, metric(1, BEGAN_AT + 1, 3))).over_reason == ""
    assert await world.metrics() == [1, 2, 3]
    assert await world.lines() == ["its last words"]


async def test_what_was_recorded_before_an_attempt_ended_is_stored_whenever_it_comes(world: World) -> None:
    await world.begin(1, placed_at=1000.0)
    await world.end(1)
    answer = await world.deliver(1, metric(1, 1500.0, 1), line(2, 9000.0, "a host whose clock is ahead"))
    assert (answer.stored_sequence, answer.over_reason) == (2, "trial 7.1, attempt 1 has ended")
    assert await world.metrics() == [1]
    assert await world.lines() == ["a host whose clock is ahead"]


async def test_an_attempt_that_the_gateway_does_not_know_yet_is_not_over(world: World) -> None:
    assert (await world.deliver(1, metric(1, 1500.0, 1))).over_reason == ""
    await world.begin(1, placed_at=1000.0)
    assert (await world.deliver(2, metric(1, 2500.0, 1))).over_reason == ""


async def test_the_token_of_an_ended_attempt_fetches_no_code(world: World) -> None:
    await world.begin(1, placed_at=1000.0)
    await world.end(1)
    code: Any = ingest_pb2.FetchCodeRequest(code_sha256=SHA256)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [chunk async for chunk in world.client.ingest.FetchCode(code, metadata=world.client.runner_metadata("7.1.1"))]
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "trial 7.1, attempt 1 has ended" in str(caught.value.details())


async def test_token_of_an_ended_attempt_writes_nothing_new_and_the_drainer_delivers_however_late(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_fence, "RUNNER_LINGER_SECONDS", 0.0)
    await world.begin(1, placed_at=1000.0)
    assert (await world.deliver(1, line(1, 1500.0, "while it lives"))).stored_sequence == 1
    await world.end(1)
    answer = await world.deliver(1, line(2, 1501.0, "of a thief"))
    assert (answer.stored_sequence, answer.over_reason) == (1, "trial 7.1, attempt 1 has ended")
    # What the runner could not deliver lies on its host, with the same token beside it.
    state = StateFolder(tmp_path / "host")
    spool = Spool(state.spools / "7.1.1-0")
    records = [ingest_pb2.IngestRecord(at=1500.0, log=line(0, 0.0, text).log) for text in ("while it lives", "its end")]
    spool.append(records)
    spool.close()
    token = allocation_token(CLUSTER_TOKEN, "7.1.1")
    drainer.save_target(
        state.spools / "7.1.1-0", spool_id="7.1.1/0", trial_id="7.1", addresses=[world.client.grpc_address], token=token
    )
    state.lock_path.write_text(f"{os.getpid()}\n")
    state.save_drain_token(drain_token(CLUSTER_TOKEN, "a1"))
    assert state.drain_token_path.stat().st_mode & 0o077 == 0
    await drainer.drain_all(state.spools)
    assert not list(state.spools.glob("7.1.1-0"))
    assert await world.lines() == ["while it lives", "its end"]


async def test_agent_delivers_for_the_attempts_that_it_had(world: World) -> None:
    await world.begin(1, placed_at=1000.0)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await world.deliver_as(drain_token(CLUSTER_TOKEN, "a2"), line(1, 1500.0, "of another host"))
    assert failure.value.code() is grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await world.deliver_as("drain:a1:" + "0" * 64, line(1, 1500.0, "of nobody"))
    assert failure.value.code() is grpc.StatusCode.UNAUTHENTICATED
    answer = await world.deliver_as(drain_token(CLUSTER_TOKEN, "a1"), line(1, 1500.0, "its own"))
    assert answer.stored_sequence == 1


async def test_token_stays_good_while_an_agent_of_an_earlier_version_is_there(
    world: World, etcd: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_fence, "RUNNER_LINGER_SECONDS", 0.0)
    await etcd.commit(
        [Put(keys.agent("a1"), wire.encode(Agent("a1"))), Put(keys.agent("a2"), wire.encode(Agent("a2", drains=True)))]
    )
    await world.begin(1, placed_at=1000.0)
    await world.end(1)
    assert (await world.deliver(1, line(1, 1500.0, "of an earlier drainer"))).stored_sequence == 1
    lost = wire.encode(Agent("a1", state=AgentState.LOST))
    await etcd.commit([Put(keys.agent("a1"), lost)])

    numbers = itertools.count(2)

    async def is_refused() -> bool:
        number = next(numbers)
        return (await world.deliver(1, line(number, 1500.0, "x"))).stored_sequence < number

    await until_async(is_refused, "the gateway seeing that all agents have tokens")
