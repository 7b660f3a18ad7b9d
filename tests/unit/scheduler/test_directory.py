"""The scheduler's view of the registered services: which of them names the storage's marker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, cast

import pytest

from gangline.domain.resource import ServiceInstance
from gangline.protocol import wire
from services.common import keys
from services.common.etcd import EtcdClient, Listing
from services.common.etcd.record import KeyValue
from services.scheduler.state.directory import Directory


class Etcd:
    """Lists these gateways, and then nothing more."""

    def __init__(self, gateways: list[ServiceInstance]) -> None:
        self.gateways = gateways

    async def list_watch(self, prefix: str) -> AsyncIterator[Any]:
        found = self.gateways if prefix == keys.ALIVE else []
        items = [KeyValue(f"{keys.ALIVE}{each.id}", wire.encode(each), 1, 1) for each in found]
        yield Listing(tuple(items), 1)
        await asyncio.Event().wait()


def gateway(name: str, started_at: float, marker: str) -> ServiceInstance:
    return ServiceInstance(id=name, kind="gateway", grpc_address=name, started_at=started_at, storage_marker=marker)


async def marker_of(gateways: list[ServiceInstance]) -> str:
    directory = Directory(cast(EtcdClient, Etcd(gateways)))
    following = asyncio.create_task(directory.run())
    async with asyncio.timeout(10):
        while len(directory.addresses_of("gateway")) < len(gateways):
            await directory.changed.wait()
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    return directory.storage_marker


@pytest.mark.parametrize("is_reversed", [False, True])
async def test_a_gateway_that_opens_another_folder_later_changes_no_marker(is_reversed: bool) -> None:
    gateways = [gateway("g1", 1.0, ""), gateway("g2", 2.0, "of-the-mount"), gateway("g3", 3.0, "of-the-root-disk")]
    assert await marker_of(gateways[::-1] if is_reversed else gateways) == "of-the-mount"
