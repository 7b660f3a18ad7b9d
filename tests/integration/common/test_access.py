"""etcd with users, whose tokens end, and with TLS."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from aetcd.rpc import rpc_pb2, rpc_pb2_grpc

from gangline.errors import GanglineError
from services.common.etcd import EtcdClient, EtcdSettings, Put, WatchBatch
from tests.support.certificate import Authority, KeyPair
from tests.support.etcd import EtcdServer
from tests.support.wait import until, within

ROOT = "/gangline/v1/test/"
PASSWORD = "correct horse"
SHORT_TOKENS = ("--auth-token", "simple", "--auth-token-ttl", "1")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd that asks for a user and forgets tokens a second after their last use."""
    server = EtcdServer(tmp_path / "etcd", arguments=SHORT_TOKENS)
    yield server
    server.stop()


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(PASSWORD + "\n")
    return path


@contextlib.asynccontextmanager
async def signed_in(server: EtcdServer, password_file: Path) -> AsyncIterator[EtcdClient]:
    await _enable_users(server.address)
    settings = EtcdSettings(endpoints=(server.address,), user="root", password_file=password_file)
    async with EtcdClient(settings) as client:
        yield client


async def test_an_expired_token_is_renewed(guarded: EtcdServer, password_file: Path) -> None:
    async with signed_in(guarded, password_file) as client:
        first = (await client.commit([Put(ROOT + "a", b"1")])).revision
        await _token_expired(guarded)
        # A watch: etcd reports the old token in a message of its own, and the stream stays open.
        watching = asyncio.create_task(_first_batch(client, first))
        assert (await within(5, watching)).revision == first
        await _token_expired(guarded)
        assert (await within(5, client.commit([Put(ROOT + "a", b"2")]))).is_committed


async def test_calls_and_leases_of_a_user_go_on_after_a_restart(guarded: EtcdServer, password_file: Path) -> None:
    async with signed_in(guarded, password_file) as client, client.keep_lease(5, beat_seconds=0.2) as lease:
        await client.commit([Put(ROOT + "a", b"1", lease.id)])
        guarded.kill()
        await asyncio.to_thread(guarded.restart)
        assert (await within(8, client.commit([Put(ROOT + "a", b"2", lease.id)]))).is_committed
        await until(lambda: lease.is_fresh, "an answered beat")


@pytest.fixture
def wrong_password_file(tmp_path: Path) -> Path:
    path = tmp_path / "wrong"
    path.write_text("guess")
    return path


async def test_a_user_without_the_right_to_watch_is_told(guarded: EtcdServer, password_file: Path) -> None:
    async with signed_in(guarded, password_file):
        settings = EtcdSettings(endpoints=(guarded.address,), user="reader", password_file=password_file)
        async with EtcdClient(settings) as client:
            with pytest.raises(GanglineError) as caught:
                await within(5, _first_batch(client, 1))
            assert caught.value.code == "etcd.permission_denied"


async def test_a_wrong_password_is_named(guarded: EtcdServer, wrong_password_file: Path) -> None:
    await _enable_users(guarded.address)
    settings = EtcdSettings(endpoints=(guarded.address,), user="root", password_file=wrong_password_file)
    with pytest.raises(GanglineError) as caught:
        await EtcdClient(settings).__aenter__()
    assert caught.value.code == "etcd.wrong_password"


async def test_a_missing_user_is_named(guarded: EtcdServer) -> None:
    await _enable_users(guarded.address)
    with pytest.raises(GanglineError) as caught:
        async with EtcdClient(EtcdSettings(endpoints=(guarded.address,))) as client:
            await client.get(ROOT + "a")
    assert caught.value.code == "etcd.user_needed"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls_arguments(authority: Authority, server: KeyPair) -> tuple[str, ...]:
    pair = ("--cert-file", str(server.cert_file), "--key-file", str(server.key_file))
    return (*pair, "--client-cert-auth", "--trusted-ca-file", str(authority.ca_file))


async def test_tls_with_a_client_certificate(tmp_path: Path, authority: Authority) -> None:
    server = EtcdServer(tmp_path / "etcd", arguments=tls_arguments(authority, authority.issue("etcd")))
    try:
        pair = authority.issue("scheduler")
        settings = EtcdSettings(
            endpoints=(server.address,),
            ca_file=authority.ca_file,
            cert_file=pair.cert_file,
            key_file=pair.key_file,
        )
        async with EtcdClient(settings) as client:
            assert (await client.commit([Put(ROOT + "secret", b"1")])).is_committed

        anonymous = EtcdSettings(endpoints=(server.address,), ca_file=authority.ca_file, deadline_seconds=1)
        with pytest.raises(GanglineError, match="no etcd answered"):
            await EtcdClient(anonymous).__aenter__()
        stranger = Authority(tmp_path, "another authority").ca_file
        distrusted = settings.model_copy(update={"ca_file": stranger, "deadline_seconds": 1})
        with pytest.raises(GanglineError, match="no etcd answered"):
            await EtcdClient(distrusted).__aenter__()
    finally:
        server.stop()


async def _enable_users(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        auth: Any = rpc_pb2_grpc.AuthStub(channel)
        await auth.UserAdd(rpc_pb2.AuthUserAddRequest(name="root", password=PASSWORD))
        await auth.UserAdd(rpc_pb2.AuthUserAddRequest(name="reader", password=PASSWORD))
        await auth.RoleAdd(rpc_pb2.AuthRoleAddRequest(name="root"))
        await auth.UserGrantRole(rpc_pb2.AuthUserGrantRoleRequest(user="root", role="root"))
        await auth.AuthEnable(rpc_pb2.AuthEnableRequest())


async def _token_expired(server: EtcdServer) -> None:
    """etcd says in its log when it drops a token."""
    log = server.directory / "etcd.log"
    num_before = len(re.findall("deleted a simple token", log.read_text()))
    await until(lambda: len(re.findall("deleted a simple token", log.read_text())) > num_before, "the token's end")


async def _first_batch(client: EtcdClient, revision: int) -> WatchBatch:
    async with contextlib.aclosing(client.watch(ROOT, revision)) as batches:
        return await anext(batches)
