"""A scheduler that stands by: when it says that it serves, and how agents hear of a new leader from it."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from gangline.domain.resource import ServiceInstance
from gangline.protocol import rpc
from gangline.v1 import agent_pb2, agent_pb2_grpc
from services.common import keys
from services.common.election import Election
from services.common.etcd import EtcdClient
from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import CLUSTER_TOKEN, SchedulerProcess, config_json
from tests.support.wait import until, until_async, within

LONG_LEASE = ("--leader-lease-seconds", "60")


@asynccontextmanager
async def leading_elsewhere(etcd: EtcdClient, address: str) -> AsyncIterator[None]:
    """A leader with a living lease and this address."""
    election = Election(etcd, ServiceInstance(id="elsewhere", kind="scheduler", grpc_address=address))
    leadership = await election.campaign()
    try:
        yield
    finally:
        await election.resign(leadership)


async def ask(
    scheduler: SchedulerProcess, epoch: int, schedulers: list[str], seconds: float = 25.0
) -> agent_pb2.FindLeaderResponse:
    async with grpc.aio.insecure_channel(scheduler.address, options=rpc.CHANNEL_OPTIONS) as channel:
        stub: agent_pb2_grpc.AgentServiceAsyncStub = agent_pb2_grpc.AgentServiceStub(channel)
        request = agent_pb2.FindLeaderRequest(epoch=epoch, scheduler_addresses=schedulers)
        return await stub.FindLeader(request, metadata=rpc.token_metadata(CLUSTER_TOKEN), timeout=seconds)


async def test_a_standby_is_ready_only_when_it_would_notice_the_leaders_death(bench: Bench) -> None:
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        host, number = port.getsockname()
        async with leading_elsewhere(bench.etcd, f"{host}:{number}"):
            starting = asyncio.create_task(bench.scheduler("s2", *LONG_LEASE))
            await until(lambda: bool(bench.schedulers), "the start")
            log = bench.schedulers[0].log
            await until(
                lambda: log.exists() and '"standing by"' in log.read_text(), "the standby knowing the leader", 20
            )
            # Nothing listens at the leader's address yet, so nothing could be noticed there.
            await asyncio.wait({starting}, timeout=1.5)
            assert not starting.done()
            port.listen()
            await within(5, starting)
            assert "cannot connect to the leader" not in log.read_text()


async def test_a_standby_that_cannot_reach_the_leader_serves_and_says_what_that_means(bench: Bench) -> None:
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        host, number = port.getsockname()
        async with leading_elsewhere(bench.etcd, f"{host}:{number}"):
            standby = await bench.scheduler("s2", "--leader-lease-seconds", "1")
            assert "cannot connect to the leader, so a fail-over will have to wait" in standby.log.read_text()


async def test_a_scheduler_that_is_started_again_leads_at_once(bench: Bench) -> None:
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{port.getsockname()[1]}"
    scheduler = await bench.scheduler("s1", *LONG_LEASE, "--listen", address)
    await bench.caller.submit(config_json(), request_id="first")
    scheduler.end(signal.SIGKILL)
    # It has an id of its own, as by default, and the address of the process before it.
    again = SchedulerProcess(bench.directory, bench.settings, "s1-again", (*LONG_LEASE, "--listen", address))
    bench.schedulers.append(again)
    await within(15, again.start())
    assert '"leading"' in again.log.read_text()


async def test_a_standby_leads_with_all_that_the_leader_had_written(bench: Bench) -> None:
    first = await bench.scheduler("s1", *LONG_LEASE)
    await bench.caller.submit(config_json(), request_id="before")
    second = await bench.scheduler("s2", *LONG_LEASE)
    agent = await bench.agent("a1", slots=1)
    ids = [(await bench.caller.submit(config_json())).experiment.id for _ in range(5)]
    await agent.started()
    await bench.caller.end(ids[-1])
    first.end(signal.SIGKILL)
    await within(10, until_async(lambda: _leads(bench.etcd, second), "the standby leading"))
    again = await bench.caller.submit(config_json(), request_id="before")
    assert again.experiment.id == ids[0] - 1
    newer = await bench.caller.submit(config_json())
    assert newer.experiment.id == ids[-1] + 1
    assert "reading the whole state" not in second.log.read_text()


async def test_a_standby_answers_agents_as_soon_as_it_knows_a_newer_leader(bench: Bench) -> None:
    first, second = await bench.scheduler("s1", *LONG_LEASE), await bench.scheduler("s2", *LONG_LEASE)
    both = [first.address, second.address]
    before = await ask(second, 0, both)
    assert (before.leader_address, list(before.scheduler_addresses)) == (first.address, both)
    asking = asyncio.create_task(ask(second, before.epoch, both))
    await asyncio.wait({asking}, timeout=0.5)
    assert not asking.done(), "nothing is new"
    first.end(signal.SIGKILL)
    answer = await within(5, asking)
    assert answer.epoch > before.epoch
    assert answer.leader_address == second.address


async def test_agents_hear_of_schedulers_that_are_started_later(bench: Bench) -> None:
    first = await bench.scheduler("s1")
    before = await ask(first, 0, [first.address])
    asking = asyncio.create_task(ask(first, before.epoch, [first.address]))
    second = await bench.scheduler("s2")
    answer = await within(5, asking)
    assert list(answer.scheduler_addresses) == [first.address, second.address]
    assert answer.epoch == before.epoch


@pytest.mark.parametrize(("epoch_error", "lives"), [(0, True), (-1, False)], ids=["present", "earlier"])
async def test_heartbeats_beside_the_stream_keep_an_agent_alive(bench: Bench, epoch_error: int, lives: bool) -> None:
    scheduler = await bench.scheduler("s1", "--agent-lease-seconds", "1", "--agent-grace-seconds", "0")
    agent = await bench.agent("a1")
    beat = agent_pb2.HeartbeatRequest(agent_id="a1", epoch=agent.welcomes[0].epoch + epoch_error)

    async def beats() -> AsyncIterator[agent_pb2.HeartbeatRequest]:
        while True:
            yield beat
            await asyncio.sleep(0.2)

    async with grpc.aio.insecure_channel(scheduler.address, options=rpc.CHANNEL_OPTIONS) as channel:
        stub: agent_pb2_grpc.AgentServiceAsyncStub = agent_pb2_grpc.AgentServiceStub(channel)
        beating = stub.Heartbeat(beats(), metadata=rpc.token_metadata(CLUSTER_TOKEN))
        agent.is_silent = True
        await asyncio.sleep(3)
        beating.cancel()
    assert ("agent lost" in scheduler.log.read_text()) is not lives


async def test_a_leader_that_stood_still_loses_no_agent(bench: Bench) -> None:
    flags = ("--agent-lease-seconds", "1.5", "--agent-grace-seconds", "0")
    scheduler = await bench.scheduler("s1", *LONG_LEASE, *flags)
    await bench.agent("a1")
    scheduler.signal(signal.SIGSTOP)
    # Longer than the agent's lease; its heartbeats wait in the scheduler's socket.
    await asyncio.sleep(4)
    scheduler.signal(signal.SIGCONT)
    log = scheduler.log
    await until(lambda: "this scheduler stood still" in log.read_text(), "the stall being noticed")
    await asyncio.sleep(1)
    assert "agent lost" not in log.read_text()


async def _leads(etcd: EtcdClient, scheduler: SchedulerProcess) -> bool:
    leader = await etcd.get(keys.LEADER)
    return leader is not None and scheduler.name.encode() in leader.value
