"""Transactions whose answer is lost, or which are applied long after the client has given up on them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from gangline.domain.resource import ServiceInstance
from gangline.errors import Effect, GanglineError
from services.common import keys
from services.common.election import Deposed, Election, Leadership, Refused
from services.common.etcd import Delete, EtcdClient, EtcdSettings, Guard, Put, Unsure
from tests.support.port import own_ports
from tests.support.proxy import Proxy
from tests.support.wait import until, until_async, within

KEY = "/gangline/v1/test/lost"
INSTANCE = ServiceInstance(id="s1", kind="scheduler", grpc_address="127.0.0.1:1")


@contextlib.asynccontextmanager
async def proxied(settings: EtcdSettings) -> AsyncIterator[tuple[Proxy, EtcdClient]]:
    """A client that reaches etcd through a proxy first, and directly once it has moved on."""
    async with Proxy(settings.endpoints[0]) as proxy:
        both = EtcdSettings(endpoints=(proxy.address, settings.endpoints[0]), try_seconds=0.3)
        async with EtcdClient(both) as client:
            yield proxy, client


async def test_a_created_key_is_recognised_as_ours(etcd: EtcdClient, etcd_settings: EtcdSettings) -> None:
    async with proxied(etcd_settings) as (proxy, client):
        proxy.is_holding_answers = True
        result = await within(5, client.commit([Put(KEY, b"ours")], [Guard(KEY, 0)]))

    stored = await etcd.get(KEY)
    assert stored is not None
    assert result.is_committed
    assert result.revision == stored.create_revision == stored.mod_revision


async def test_a_key_that_another_created_is_not_ours(etcd: EtcdClient, etcd_settings: EtcdSettings) -> None:
    await etcd.commit([Put(KEY, b"another's")])
    async with proxied(etcd_settings) as (proxy, client):
        proxy.is_holding_answers = True
        result = await within(5, client.commit([Put(KEY, b"ours")], [Guard(KEY, 0)]))
    assert not result.is_committed
    assert [item.value for item in result.found] == [b"another's"]


async def test_a_deletion_is_recognised(etcd: EtcdClient, etcd_settings: EtcdSettings) -> None:
    created = (await etcd.commit([Put(KEY, b"x")])).revision
    async with proxied(etcd_settings) as (proxy, client):
        proxy.is_holding_answers = True
        result = await within(5, client.commit([Delete(KEY)], [Guard(KEY, created)]))
    assert result.is_committed
    assert await etcd.get(KEY) is None


async def test_a_single_try_says_that_it_is_unsure(etcd_settings: EtcdSettings) -> None:
    async with proxied(etcd_settings) as (proxy, client):
        proxy.is_holding_answers = True
        with pytest.raises(Unsure):
            await client.commit_once([Put(KEY, b"x")], [])


async def test_a_leader_commits_once_when_its_answer_was_lost(etcd: EtcdClient, etcd_settings: EtcdSettings) -> None:
    async with proxied(etcd_settings) as (proxy, client):
        leadership = await within(5, Election(client, INSTANCE).campaign())
        proxy.is_holding_answers = True
        revision = await within(5, leadership.commit([Put(KEY, b"once")], [Guard(KEY, 0)]))
        stored = await etcd.get(KEY)
        assert stored is not None
        assert stored.create_revision == stored.mod_revision == revision
        await leadership.close()


async def test_a_request_that_arrives_late_does_not_undo_newer_writes(
    etcd: EtcdClient, etcd_settings: EtcdSettings
) -> None:
    """A member that was stopped applies what it had received when it goes on. By then the leader has written again."""
    async with proxied(etcd_settings) as (proxy, client):
        leadership = await within(5, Election(client, INSTANCE).campaign())
        proxy.is_holding_requests = True
        old = asyncio.create_task(leadership.commit([Put(KEY, b"old")]))
        await until(lambda: any(b"old" in chunk for chunk in proxy.held), "the first try")
        num_chunks = next(number for number, chunk in enumerate(proxy.held) if b"old" in chunk) + 1
        await within(5, old)
        await leadership.commit([Put(KEY, b"new")])

        num_answer_bytes = proxy.num_answer_bytes
        await proxy.release(num_chunks)
        await until(lambda: proxy.num_answer_bytes > num_answer_bytes + 100, "etcd's answer to the late request")

        stored = await etcd.get(KEY)
        assert stored is not None
        assert stored.value == b"new"
        await leadership.close()


async def test_a_write_that_could_not_be_settled_is_settled_before_the_next_one(
    etcd: EtcdClient, etcd_settings: EtcdSettings
) -> None:
    """The first member hangs with the request, the second is away, so that the commit fails with an open outcome. The
    second comes back and takes a newer write; then the first goes on."""
    (port,) = own_ports(1)
    async with Proxy(etcd_settings.endpoints[0]) as hanging:
        endpoints = (hanging.address, f"127.0.0.1:{port}")
        async with EtcdClient(EtcdSettings(endpoints=endpoints, try_seconds=0.3, deadline_seconds=1.0)) as client:
            leadership = await within(5, Election(client, INSTANCE).campaign())
            # By then it has listed the leader key as well, which it does once at the start of its term.
            for value in (b"first", b"second"):
                await leadership.commit([Put(KEY, value)])
            hanging.is_holding_requests = True
            with pytest.raises(GanglineError) as caught:
                await leadership.commit([Put(KEY, b"old")])
            assert (caught.value.code, caught.value.effect) == ("etcd.unreachable", Effect.UNKNOWN)
            num_chunks = next(number for number, chunk in enumerate(hanging.held) if b"old" in chunk) + 1
            async with Proxy(etcd_settings.endpoints[0], port=port):
                await _commit(leadership, Put(KEY, b"new"))
                num_answer_bytes = hanging.num_answer_bytes
                await hanging.release(num_chunks)
                await until(lambda: hanging.num_answer_bytes > num_answer_bytes + 100, "etcd's answer to the late one")
                stored = await etcd.get(KEY)
                assert stored is not None
                assert stored.value == b"new"
                await leadership.close()


async def _commit(leadership: Leadership, put: Put) -> None:
    """Until etcd takes it."""

    async def is_committed() -> bool:
        try:
            return await leadership.commit([put]) > 0
        except GanglineError:
            return False

    await until_async(is_committed, f"the write of {put.value!r}")


async def test_a_guard_of_the_caller_is_told_from_being_deposed(etcd: EtcdClient) -> None:
    election = Election(etcd, INSTANCE)
    leadership = await within(5, election.campaign())
    created = (await etcd.commit([Put(KEY, b"x")])).revision
    with pytest.raises(Refused) as caught:
        await leadership.commit([Put(KEY, b"y")], [Guard(KEY, 0)])
    assert [(item.key, item.create_revision) for item in caught.value.found] == [(KEY, created)]
    assert not leadership.lost.is_set()

    await etcd.commit([Delete(keys.LEADER)])
    with pytest.raises(Deposed):
        await leadership.commit([Put(KEY, b"y")])
    assert leadership.lost.is_set()
    assert (await etcd.get(KEY)).value == b"x"  # type: ignore[union-attr] # written above
    await election.resign(leadership)
