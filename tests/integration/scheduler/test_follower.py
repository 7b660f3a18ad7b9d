"""A standby's state equals the content of etcd, even when the history that it needs is compacted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gangline.domain.resource import Agent, ServiceInstance
from services.common.election import Election
from services.common.etcd import EtcdClient, EtcdSettings, Put
from services.scheduler.leader import follower as follower_module
from services.scheduler.leader.follower import Follower
from services.scheduler.state.codec import key_of, operations_of
from services.scheduler.state.records import StateChange
from services.scheduler.state.state_store import load

INSTANCE = ServiceInstance(id="s1", kind="scheduler", grpc_address="127.0.0.1:1")


@asynccontextmanager
async def following(etcd: EtcdClient) -> AsyncIterator[Follower]:
    follower = Follower(etcd)
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def puts(*agent_ids: str) -> StateChange:
    return StateChange(puts=tuple(Agent(agent_id) for agent_id in agent_ids))


async def test_a_new_leader_has_all_that_was_written_before_it_was_elected(etcd: EtcdClient) -> None:
    await etcd.commit(operations_of(puts("a1", "a2")))
    async with following(etcd) as follower:
        await follower.is_listed.wait()
        await etcd.commit(operations_of(puts("a3", "a4")))
        await etcd.commit(operations_of(StateChange(deletes=((Agent, "a1"), (Agent, "a4")))))
        election = Election(etcd, INSTANCE)
        leadership = await election.campaign()
        state = await follower.catch_up(leadership.epoch)
    assert {agent.id for agent in state.all_of(Agent)} == {"a2", "a3"}
    assert state.tables == (await load(etcd)).tables
    await election.resign(leadership)


async def test_a_watch_that_lags_is_not_waited_for_for_ever(etcd: EtcdClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "CATCH_UP_SECONDS", 0.2)
    await etcd.commit(operations_of(puts("a1")))
    # It does not run, as one whose watch has come to a stop.
    state = await Follower(etcd).catch_up(epoch=1)
    assert [agent.id for agent in state.all_of(Agent)] == ["a1"]


async def test_a_value_that_cannot_be_read_leaves_a_standby_unready_until_it_is_gone(
    etcd: EtcdClient, etcd_settings: EtcdSettings
) -> None:
    key = key_of(Agent, "broken")
    async with EtcdClient(etcd_settings) as other:
        await other.commit([Put(key, b"\xff\xff\xff")])
    async with following(etcd) as follower:
        await asyncio.wait({waiting := asyncio.ensure_future(follower.is_listed.wait())}, timeout=0.5)
        assert not waiting.done()
        await etcd.commit(operations_of(puts("broken")))
        await asyncio.wait_for(waiting, 5)
