"""Connections of callers without a token at `gangline-gateway` as a real process, which may open few files."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import httpx
import pytest

from gangline.protocol.rpc import CHANNEL_OPTIONS
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import gateway_pb2_grpc
from services.common.etcd import EtcdClient
from tests.integration.gateway.test_program import put_experiment
from tests.support.etcd import EtcdServer
from tests.support.gateway import NO_TLS, Client, GatewayProcess, add_user
from tests.support.wait import until_async

OPEN_FILES = 1024
# A client's first bytes, and the header of its answer to a ping.
OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
PONG = bytes([0, 0, 8, 6, 1, 0, 0, 0, 0])
HEADER_BYTES, PING = 9, 6
NEWCOMER_SECONDS = 40


class IdleConnection(asyncio.Protocol):
    """An HTTP/2 connection that makes no call. It answers pings, so grpc keeps it for 2 minutes."""

    def __init__(self) -> None:
        self._waiting = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(OPENING)

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        while len(self._waiting) >= (end := HEADER_BYTES + int.from_bytes(self._waiting[:3], "big")):
            frame, self._waiting = self._waiting[:end], self._waiting[end:]
            if frame[3] == PING and not frame[4]:
                self.transport.write(PONG + frame[HEADER_BYTES:])


@contextlib.asynccontextmanager
async def idle_connections(address: str, source: str, number: int) -> AsyncIterator[None]:
    """Holds connections from this address of the loopback."""
    host, _, port = address.rpartition(":")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    loop, transports = asyncio.get_running_loop(), []
    try:
        for _ in range(number):
            opened = await loop.create_connection(IdleConnection, host, int(port), local_addr=(source, 0))
            transports.append(opened[0])
        yield
    finally:
        for transport in transports:
            transport.abort()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def is_served(client: Client) -> bool:
    """Makes a call over a new connection."""
    # Otherwise grpc would share the client's connection.
    options = [*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(client.grpc_address, options=options) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await stub.ListExperiments(pb.ListExperimentsRequest(), metadata=client.metadata, timeout=10)
            return True
    return False


async def test_idle_grpc_connections_of_one_address_keep_no_other_address_out(
    etcd: EtcdClient, etcd_server: EtcdServer, tmp_path: Path
) -> None:
    """More of them than the process may open files; the call of a newcomer and /healthz are answered all the same, and
    a call that runs goes on."""
    await add_user(etcd)
    await put_experiment(etcd)
    gateway = GatewayProcess(tmp_path, etcd_server.address)
    gateway.open_files = OPEN_FILES
    await gateway.start()
    client = Client(gateway.addresses["grpc"], gateway.addresses["http"])
    try:
        running = client.gateway.StreamLogs(
            pb.StreamLogsRequest(experiment_id=7, follow=True), metadata=client.metadata
        )
        reading = asyncio.create_task(running.read())
        await client.gateway.ListExperiments(pb.ListExperimentsRequest(), metadata=client.metadata, timeout=20)
        async with idle_connections(client.grpc_address, "127.0.0.2", OPEN_FILES + 100):
            await until_async(lambda: is_served(client), "the newcomer being served", NEWCOMER_SECONDS)
            async with httpx.AsyncClient(base_url=f"http://{client.http_address}", timeout=20, verify=NO_TLS) as http:
                assert (await http.get("/healthz")).status_code == 200
        assert "closed connections without an admitted call" in gateway.output()
        assert "open only 1024 files; raise LimitNOFILE" in gateway.output()
        assert not reading.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    finally:
        await client.close()
        await gateway.end()
