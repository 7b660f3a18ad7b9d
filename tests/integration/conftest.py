"""The fixtures of tests on a real etcd: one server for all of them, empty at the start of each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from services.common import keys
from services.common.etcd import Delete, EtcdClient, EtcdSettings
from tests.support.etcd import EtcdServer


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """Shared: a test that stops or kills it starts one of its own instead."""
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    yield server
    server.stop()


@pytest_asyncio.fixture
async def etcd_settings(etcd_server: EtcdServer) -> EtcdSettings:
    """Where an etcd is that holds nothing of Gangline's."""
    async with EtcdClient(etcd_server.settings) as client:
        listing = await client.list(keys.ROOT)
        for start in range(0, len(listing.items), 100):
            await client.commit([Delete(item.key) for item in listing.items[start : start + 100]])
    return etcd_server.settings


@pytest_asyncio.fixture
async def etcd(etcd_settings: EtcdSettings) -> AsyncIterator[EtcdClient]:
    """A client of an etcd that holds nothing of Gangline's."""
    async with EtcdClient(etcd_settings) as client:
        yield client
