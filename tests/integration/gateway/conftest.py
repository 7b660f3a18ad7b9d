"""A gateway in this process on a real etcd, a stand-in leader, a client of a user, and empty databases."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import sqlalchemy as sa

from services.common.etcd import EtcdClient, EtcdSettings
from services.gateway.history.database import open_database
from services.gateway.leader import leader_client as leader_module
from services.gateway.program import run_gateway
from tests.support.gateway import CLUSTER_TOKEN, Client, add_user, settings_in
from tests.support.postgres import Postgres, find_postgres
from tests.support.stand_in_leader import StandInLeader


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    binaries = find_postgres()
    if binaries is None:
        pytest.skip("PostgreSQL's server is not installed (Debian's package postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    server = Postgres(binaries, folder)
    server.start()
    yield server
    server.stop()
    shutil.rmtree(folder)


@pytest.fixture
def postgres_url(postgres: Postgres) -> str:
    """The URL of an empty database."""
    engine = sa.create_engine(postgres.url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE"))
        connection.execute(sa.text("CREATE SCHEMA public"))
    engine.dispose()
    return postgres.url


@pytest_asyncio.fixture
async def leader(etcd: EtcdClient) -> AsyncIterator[StandInLeader]:
    leader = StandInLeader(etcd, CLUSTER_TOKEN)
    await leader.start()
    yield leader
    await leader.stop()


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which no leader answers. They ask for it by `usefixtures`, so that it comes before the gateway."""
    monkeypatch.setattr(leader_module, "PATIENCE_SECONDS", 1.0)


@pytest_asyncio.fixture
async def client(etcd: EtcdClient, etcd_settings: EtcdSettings, tmp_path: Path) -> AsyncIterator[Client]:
    await add_user(etcd)
    async with run_gateway(settings_in(tmp_path, etcd_settings)) as addresses:
        client = Client(addresses.grpc, addresses.http)
        yield client
        await client.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/history.db"
    postgres_url: str = request.getfixturevalue("postgres_url")
    return postgres_url


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    engine = open_database(url)
    yield engine
    engine.dispose()
