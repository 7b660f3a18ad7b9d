"""Leases and presence on a real etcd."""

from __future__ import annotations

import asyncio
import contextlib
import time

import grpc.aio
import pytest

from gangline.domain.resource import ServiceInstance
from gangline.protocol import wire
from services.common import keys
from services.common.etcd import EtcdClient, EtcdSettings, Put
from services.common.etcd.stub import Operation, messages, methods_of
from services.common.presence import announce
from tests.support.wait import until, until_async, within

KEY = "/gangline/v1/test/leased"
GATEWAY = ServiceInstance(id="g1", kind="gateway", grpc_address="127.0.0.1:8081", http_address="127.0.0.1:8080")


async def test_a_key_lives_as_long_as_its_lease(etcd: EtcdClient) -> None:
    async with etcd.keep_lease(1) as lease:
        await etcd.commit([Put(KEY, b"", lease.id)])
        # Longer than the lease would last without beats.
        with pytest.raises(TimeoutError):
            await within(2.5 * lease.ttl_seconds, lease.lost.wait())
        assert lease.is_fresh
        assert await etcd.get(KEY) is not None
    assert await etcd.get(KEY) is None


async def test_heartbeats_are_due_at_the_same_times_for_all_processes(etcd: EtcdClient) -> None:
    # The lease is granted in the middle of a period.
    await asyncio.sleep((0.25 - time.monotonic()) % 0.5)
    async with etcd.keep_lease(5, beat_seconds=0.5) as lease:
        late_seconds = []
        for _ in range(4):
            lease.beaten_again.clear()
            await within(5, lease.beaten_again.wait())
            late_seconds.append((time.monotonic() - lease.silent_seconds) % 0.5)
    # The first one follows the grant.
    assert min(late_seconds[1:]) < 0.1, late_seconds


async def test_a_revoked_lease_is_lost(etcd: EtcdClient, etcd_settings: EtcdSettings) -> None:
    async with etcd.keep_lease(5, beat_seconds=0.1) as lease:
        await _revoke(etcd_settings, lease.id)
        await within(2, lease.lost.wait())
        assert not lease.is_fresh


async def test_presence_is_there_and_gone_with_its_context(etcd: EtcdClient) -> None:
    async with announce(etcd, GATEWAY):
        listing = await etcd.list(keys.ALIVE)
        assert [item.key for item in listing.items] == [keys.alive("gateway", "g1")]
        assert wire.decode(ServiceInstance, listing.items[0].value) == GATEWAY
    assert (await etcd.list(keys.ALIVE)).items == ()


async def test_presence_comes_back_when_its_lease_was_ended(etcd: EtcdClient, etcd_settings: EtcdSettings) -> None:
    async with announce(etcd, GATEWAY, ttl_seconds=1):
        first = await etcd.get(keys.alive("gateway", "g1"))
        assert first is not None
        await _revoke(etcd_settings, await _lease_of(etcd_settings, first.key))

        async def is_back() -> bool:
            item = await etcd.get(first.key)
            return item is not None and item.create_revision > first.create_revision

        await until_async(is_back, "presence after its lease ended", seconds=5)


async def test_a_cancelled_holder_gives_its_key_back(etcd: EtcdClient) -> None:
    is_held = asyncio.Event()

    async def hold() -> None:
        async with announce(etcd, GATEWAY):
            is_held.set()
            await asyncio.Event().wait()

    holder = asyncio.create_task(hold())
    await within(5, is_held.wait())
    holder.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await holder
    await until(holder.done, "the end of the holder")
    assert (await etcd.list(keys.ALIVE)).items == ()


async def _revoke(settings: EtcdSettings, lease_id: int) -> None:
    async with grpc.aio.insecure_channel(settings.endpoints[0]) as channel:
        await methods_of(channel)[Operation.LEASE_REVOKE](messages.LeaseRevokeRequest(ID=lease_id))


async def _lease_of(settings: EtcdSettings, key: str) -> int:
    async with grpc.aio.insecure_channel(settings.endpoints[0]) as channel:
        answer = await methods_of(channel)[Operation.RANGE](messages.RangeRequest(key=key.encode()))
        return int(answer.kvs[0].lease)
