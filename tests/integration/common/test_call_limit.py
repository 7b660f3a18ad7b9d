"""Limits on calls without a token and on streams, over real connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from gangline.errors import ErrorKind, GanglineError
from gangline.protocol.rpc import CHANNEL_OPTIONS, error_of, token_metadata
from gangline.v1 import agent_pb2, agent_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc
from services.common.access import call_limit
from services.common.access.call_limit import CallLimits
from services.common.server import Principal, Server, serve
from tests.integration.common.test_server import CONNECT, SUBMIT, add_services, authenticate, counting_proxy


class Guard:
    """Refuses an address with a failure."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def check_address(self, peer: str) -> None:
        if self.failed:
            raise GanglineError("test.held_up", f"too many from {peer}", ErrorKind.FORBIDDEN)

    def fail_address(self, peer: str) -> None:
        self.failed.append(peer)


async def admit(method: str, token: str | None) -> Principal:
    return Principal("anonymous", "") if method == SUBMIT else await authenticate(method, token)


@contextlib.asynccontextmanager
async def serving(limits: CallLimits) -> AsyncIterator[Server]:
    server = await serve("127.0.0.1:0", add_services, admit, limits=limits)
    try:
        yield server
    finally:
        await server.stop(0)


async def code_of(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_of(caught.value, "the test").code


async def test_address_is_judged_before_anything_of_a_call_without_a_token_is_read() -> None:
    guard, options = Guard(), [*CHANNEL_OPTIONS, ("grpc.max_send_message_length", -1)]
    limits = CallLimits({SUBMIT: 1000, CONNECT: 64 << 20}, {SUBMIT: guard})
    async with (
        serving(limits) as server,
        counting_proxy(server.address) as (address, counted),
        grpc.aio.insecure_channel(address, options=options) as channel,
    ):
        stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        answer = await stub.SubmitExperiment(scheduler_pb2.SubmitExperimentRequest(), timeout=20)
        assert list(answer.warnings) == ["anonymous", ""]
        large = scheduler_pb2.SubmitExperimentRequest(config_json="x" * 2000)
        assert await code_of(stub.SubmitExperiment(large, timeout=20)) == "rpc.too_large"
        assert guard.failed == ["127.0.0.1"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await cast("Any", channel.unary_unary(SUBMIT))(bytes(60 << 20), timeout=30)
    assert caught.value.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert counted() < 8 << 20


async def test_message_of_a_call_without_a_token_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_limit, "OPEN_SECONDS", 0.2)
    guard = Guard()

    async def never() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    limits = CallLimits(guards={SUBMIT: guard})
    async with serving(limits) as server, grpc.aio.insecure_channel(server.address, options=CHANNEL_OPTIONS) as channel:
        assert await code_of(cast("Any", channel.stream_unary(SUBMIT))(never(), timeout=20)) == "rpc.too_slow"
    assert guard.failed == ["127.0.0.1"]


async def test_streams_of_one_address_and_their_messages_are_limited() -> None:
    metadata = token_metadata("token of ann")
    limits = CallLimits(streams_of_peer=2, seconds_by_method={CONNECT: 1.0})
    async with serving(limits) as server, grpc.aio.insecure_channel(server.address, options=CHANNEL_OPTIONS) as channel:
        stub: Any = agent_pb2_grpc.AgentServiceStub(channel)
        calls = [stub.Connect(metadata=metadata, timeout=30) for _ in range(2)]
        for call in calls:
            await call.write(agent_pb2.ConnectRequest(hello=agent_pb2.AgentHello()))
            assert (await call.read()).welcome.epoch == 7
        assert await code_of(stub.Connect(metadata=metadata, timeout=30).read()) == "rpc.too_many_streams"
        # The first two fall silent, which ends them, and makes room.
        assert [await code_of(call.read()) for call in calls] == ["rpc.too_slow"] * 2
        last = stub.Connect(metadata=metadata, timeout=30)
        await last.write(agent_pb2.ConnectRequest(hello=agent_pb2.AgentHello()))
        assert (await last.read()).welcome.epoch == 7
        last.cancel()
