"""What ends when a user is deactivated, over real processes: also streams and connections that carry nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import httpx
import pytest
import pytest_asyncio

from gangline.client import Client
from gangline.domain.state import State
from gangline.errors import GanglineError
from gangline.protocol import rpc
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import gateway_pb2_grpc, ingest_pb2, ingest_pb2_grpc
from services.common.access.security import allocation_token
from services.common.etcd import EtcdClient, EtcdSettings
from tests.support.gateway import NO_TLS
from tests.support.scheduler import ADMIN_TOKEN, CLUSTER_TOKEN
from tests.support.two_users import CONFIG, Bench
from tests.support.wait import until_async

T = TypeVar("T")
SECONDS = 5.0


@dataclass
class Users:
    bench: Bench
    admin: Client
    ann: Client
    token: str  # of a session of ann
    grpc: grpc.aio.Channel

    @property
    def metadata(self) -> Any:
        return rpc.token_metadata(self.token)

    def http(self, token: str = "") -> httpx.AsyncClient:
        """token: of another caller than ann."""
        headers = {"Authorization": f"Bearer {token or self.token}"}
        address = self.bench.process.addresses["http"]
        return httpx.AsyncClient(base_url=f"http://{address}/api/v1", headers=headers, timeout=20, verify=NO_TLS)

    async def start_shell(self) -> int:
        async with self.http() as client:
            answer = await client.post("/tasks", json={"kind": "SHELL"})
            assert answer.status_code == 200, answer.text
            return int(answer.json()["experiment"]["id"])


@pytest_asyncio.fixture
async def users(tmp_path: Path, etcd: EtcdClient, etcd_settings: EtcdSettings) -> AsyncIterator[Users]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('trains')\n")
    async with AsyncExitStack() as stack:
        bench = Bench(tmp_path, etcd_settings, etcd, stack)
        await bench.scheduler("s1")
        await bench.gateway()
        address = bench.process.addresses["grpc"]

        def connect(token: str) -> Client:
            return stack.enter_context(Client(address, token, retry_seconds=10))

        admin = connect(ADMIN_TOKEN)
        await call(admin.create_user, "ann", "Password-of-ann-1")
        token = (await call(connect("-").log_in, "ann", "Password-of-ann-1")).token
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, options=rpc.CHANNEL_OPTIONS))
        yield Users(bench, admin, connect(token), token, channel)


async def call(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    return await asyncio.to_thread(function, *arguments, **options)


async def code_of(stream: Any, begun: asyncio.Event | None = None) -> grpc.StatusCode:
    """Reads a stream to its end, and returns its status. begun: set with the first answer."""
    try:
        async for _ in stream:
            if begun is not None:
                begun.set()
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def runner(users: Users, experiment_id: int, arrived: asyncio.Event, ended: asyncio.Event) -> None:
    """Offers the shell as its trial runner does, and takes one connection, which it keeps open without a byte."""
    stub: Any = ingest_pb2_grpc.IngestServiceStub(users.grpc)
    allocation_id = f"{experiment_id}.1.1"
    metadata = rpc.token_metadata(allocation_token(CLUSTER_TOKEN, allocation_id))
    offers = stub.OfferTunnels(
        ingest_pb2.OfferTunnelsRequest(allocation_id=allocation_id, user="ann"), metadata=metadata
    )
    async for offer in offers:
        if offer.authorized_key:
            arrived.set()
        if offer.tunnel_id:

            async def requests(tunnel_id: str = offer.tunnel_id) -> AsyncIterator[Any]:
                yield ingest_pb2.TunnelRequest(tunnel_id=tunnel_id)
                await asyncio.Event().wait()

            await code_of(stub.Tunnel(requests(), metadata=metadata))
            ended.set()


async def test_streams_and_tunnels_that_carry_nothing_end_within_seconds(users: Users) -> None:
    experiment = (await call(users.ann.create_experiment, CONFIG, users.bench.code, is_paused=True)).experiment
    shell = await users.start_shell()
    gateway: Any = gateway_pb2_grpc.GatewayServiceStub(users.grpc)
    request = pb.StreamLogsRequest(experiment_id=experiment.id, follow=True)
    logs = asyncio.create_task(code_of(gateway.StreamLogs(request, metadata=users.metadata)))
    arrived, ended, opened = asyncio.Event(), asyncio.Event(), asyncio.Event()
    offering = asyncio.create_task(runner(users, shell, arrived, ended))
    await asyncio.wait_for(arrived.wait(), 10)

    async def typed() -> AsyncIterator[Any]:
        yield pb.ConnectTaskRequest(experiment_id=shell)
        await asyncio.Event().wait()

    tunnel = asyncio.create_task(code_of(gateway.ConnectTask(typed(), metadata=users.metadata), opened))
    await asyncio.wait_for(opened.wait(), 10)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(users.http())
        live = await stack.enter_async_context(http.stream("GET", "/stream", params={"queue": "true"}))
        followed = await stack.enter_async_context(
            http.stream("GET", f"/experiments/{experiment.id}/logs", params={"follow": "true"})
        )
        assert (live.status_code, followed.status_code) == (200, 200)

        async def drain(answer: httpx.Response) -> None:
            async for _ in answer.aiter_bytes():
                pass

        bodies = [asyncio.create_task(drain(answer)) for answer in (live, followed)]
        # They stay open for as long as the user may have them: longer than the pause between two judgements.
        await asyncio.wait({logs, tunnel, *bodies}, timeout=2.5)
        assert not any(task.done() for task in (logs, tunnel, *bodies))
        await call(users.admin.deactivate_user, "ann")
        async with asyncio.timeout(SECONDS):
            assert await logs is grpc.StatusCode.UNAUTHENTICATED
            assert await tunnel is grpc.StatusCode.UNAUTHENTICATED
            await asyncio.gather(*bodies)
            await ended.wait()
    offering.cancel()
    assert "exception" not in users.bench.process.output().lower()


async def test_a_deactivation_kills_experiments_and_tasks_only_if_it_is_told_to(users: Users) -> None:
    experiment = (await call(users.ann.create_experiment, CONFIG, users.bench.code)).experiment
    shell = await users.start_shell()
    other = (await call(users.admin.create_experiment, CONFIG, users.bench.code)).experiment
    await call(users.admin.deactivate_user, "ann")
    await call(users.admin.activate_user, "ann")
    async with users.http(ADMIN_TOKEN) as client:
        ann = next(user for user in (await client.get("/users")).json()["users"] if user["username"] == "ann")
        for is_active in (False, True):
            answer = await client.patch(f"/users/{ann['id']}", json={"active": is_active})
            assert answer.status_code == 200, answer.text
    assert (await call(users.admin.get_experiment, experiment.id)).experiment.state is State.QUEUED
    await call(users.admin.deactivate_user, "ann", kill_experiments=True)

    async def is_ended(number: int) -> bool:
        return (await call(users.admin.get_experiment, number)).experiment.state is State.TERMINAL

    for number in (experiment.id, shell):
        await until_async(lambda number=number: is_ended(number), f"the end of {number}", SECONDS)  # type: ignore[misc]
    assert not await is_ended(other.id)

    async def recorded() -> list[str] | None:
        found, _ = await call(users.admin.list_audit, action="experiment.kill")
        return sorted(each.object_id for each in found if each.actor == "admin") if len(found) > 1 else None

    assert await until_async(recorded, "the records") == sorted(map(str, (experiment.id, shell)))
    # What has ended is not killed again, and a repeated command is no error.
    await call(users.admin.deactivate_user, "ann", kill_experiments=True)


async def test_experiments_are_killed_with_a_deactivation_only(users: Users) -> None:
    async with users.http() as client:
        answer = await client.patch("/users/2", json={"displayName": "x", "killExperiments": True})
        assert (answer.status_code, answer.json()["code"]) == (400, "user.kill")
    with pytest.raises(GanglineError) as refused:
        await call(users.ann.deactivate_user, "ann", kill_experiments=True)
    assert refused.value.code == "auth.not_admin"
