"""The status with which a server ends a stream, where a message is written at the same moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
import pytest

from gangline.errors import conflict
from gangline.protocol.peer_status import PeerStatus
from gangline.protocol.rpc import error_of, status_of
from gangline.v1 import agent_pb2, agent_pb2_grpc

ATTEMPTS = 500


class Agents(agent_pb2_grpc.AgentServiceServicer):
    """Refuses every stream in its own threads, and tells when one has ended."""

    def __init__(self) -> None:
        self.has_ended = threading.Event()

    def Connect(  # noqa: N802 - the method's name in the proto
        self, requests: Any, context: Any
    ) -> Iterator[agent_pb2.ConnectResponse]:
        context.add_callback(self.has_ended.set)
        error = conflict("scheduler.not_leading", "another scheduler leads")
        error.leader_address = "leader.example:8080"
        status, message, trailing = status_of(error)
        context.set_trailing_metadata(trailing)
        context.abort(status, message)
        yield agent_pb2.ConnectResponse()


async def test_the_peers_status_is_kept_where_a_write_fails_at_the_same_moment() -> None:
    """The event loop stands still until the server has ended the stream. So it finds the status and the failed write at
    the same time, as a busy process does."""
    service = Agents()  # type: ignore[abstract] # one call is enough here
    server = grpc.server(ThreadPoolExecutor(2))
    agent_pb2_grpc.add_AgentServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = agent_pb2_grpc.AgentServiceStub(channel)
            await channel.channel_ready()
            for _ in range(ATTEMPTS):
                service.has_ended.clear()
                call = stub.Connect(timeout=10)
                peer_status = PeerStatus(call)
                try:
                    # Raises where the stream has ended by now.
                    await call.wait_for_connection()
                    assert service.has_ended.wait(10)
                    await call.write(agent_pb2.ConnectRequest(hello=agent_pb2.AgentHello()))
                    await call.read()
                except asyncio.InvalidStateError:
                    # The status arrived first.
                    continue
                except grpc.aio.AioRpcError as failure:
                    error = error_of(peer_status.of(failure), "the test")
                    assert (error.code, error.leader_address) == ("scheduler.not_leading", "leader.example:8080")
                    if failure.code() is grpc.StatusCode.INTERNAL:
                        return
    finally:
        server.stop(None).wait()
    pytest.fail("grpc.aio keeps the status by itself now: PeerStatus is not needed any more")
