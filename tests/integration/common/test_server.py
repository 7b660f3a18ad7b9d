"""The grpc server that every service runs: who may call, what errors become, and ports that are taken."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gangline.errors import ErrorKind, GanglineError, not_found, unauthenticated
from gangline.rpc import CHANNEL_OPTIONS, error_of, token_metadata
from gangline.v1 import agent_pb2, agent_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc
from services.common.server import Principal, Server, ServerTls, current_principal, serve
from tests.support.certificate import Authority


class Scheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Answers with who asks; request ids choose what goes wrong."""

    async def SubmitExperiment(  # noqa: N802 - the method's name in the proto
        self, request: Any, context: Any
    ) -> scheduler_pb2.SubmitExperimentResponse:
        if request.request_id == "unknown":
            raise not_found("test.not_found", "there is no such thing")
        if request.request_id == "bug":
            raise ZeroDivisionError("secret detail")
        principal = current_principal()
        return scheduler_pb2.SubmitExperimentResponse(warnings=[principal.kind, principal.name])


class Agents(agent_pb2_grpc.AgentServiceServicer):
    async def Connect(  # noqa: N802 - the method's name in the proto
        self, requests: Any, context: Any
    ) -> AsyncIterator[agent_pb2.ConnectResponse]:
        async for request in requests:
            if request.HasField("status"):
                raise not_found("test.not_found", f"no allocation of {current_principal().name}")
            yield agent_pb2.ConnectResponse(welcome=agent_pb2.AgentWelcome(epoch=7))


def add_services(server: grpc.aio.Server) -> None:
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(
        Scheduler(),  # type: ignore[abstract] # one call is enough here
        server,
    )
    agent_pb2_grpc.add_AgentServiceServicer_to_server(
        Agents(),  # type: ignore[abstract] # one call is enough here
        server,
    )


async def authenticate(method: str, token: str | None) -> Principal:
    if token is None or not token.startswith("token of "):
        raise unauthenticated("test.no_token", f"{method} needs a token")
    return Principal("user", token.removeprefix("token of "))


@contextlib.asynccontextmanager
async def serving(tls: ServerTls | None = None) -> AsyncIterator[Server]:
    server = await serve("127.0.0.1:0", add_services, authenticate, tls)
    try:
        yield server
    finally:
        await server.stop(0)


async def submit(server: Server, request_id: str = "", user: str | None = "ann") -> list[str]:
    metadata = token_metadata(f"token of {user}") if user else ()
    async with grpc.aio.insecure_channel(server.address, options=CHANNEL_OPTIONS) as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        request = scheduler_pb2.SubmitExperimentRequest(request_id=request_id)
        try:
            answer = await stub.SubmitExperiment(request, metadata=metadata, timeout=5)
        except grpc.aio.AioRpcError as failure:
            raise error_of(failure, "the test") from failure
        return list(answer.warnings)


async def test_handlers_know_who_calls_even_when_many_do() -> None:
    async with serving() as server:
        names = [f"user{number}" for number in range(20)]
        answers = await asyncio.gather(*(submit(server, user=name) for name in names))
        assert answers == [["user", name] for name in names]


@pytest.mark.parametrize(
    ("request_id", "user", "code", "kind", "message"),
    [
        ("unknown", "ann", "test.not_found", ErrorKind.NOT_FOUND, "there is no such thing"),
        ("", None, "test.no_token", ErrorKind.UNAUTHENTICATED, "needs a token"),
        ("bug", "ann", "rpc.internal", ErrorKind.INTERNAL, "SubmitExperiment failed: ZeroDivisionError"),
    ],
)
async def test_errors_of_a_unary_call_arrive(
    request_id: str, user: str | None, code: str, kind: ErrorKind, message: str
) -> None:
    async with serving() as server:
        with pytest.raises(GanglineError) as caught:
            await submit(server, request_id, user)
        assert (caught.value.code, caught.value.kind) == (code, kind)
        assert message in caught.value.message
        assert "secret detail" not in caught.value.message


@pytest.mark.parametrize(
    ("user", "code", "message"),
    [("ann", "test.not_found", "no allocation of ann"), (None, "test.no_token", "needs a token")],
)
async def test_errors_of_a_stream_arrive(user: str | None, code: str, message: str) -> None:
    metadata = token_metadata(f"token of {user}") if user else ()
    async with serving() as server, grpc.aio.insecure_channel(server.address, options=CHANNEL_OPTIONS) as channel:
        stub: Any = agent_pb2_grpc.AgentServiceStub(channel)
        call = stub.Connect(metadata=metadata, timeout=5)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _talk(call)
        error = error_of(caught.value, "the test")
        assert error.code == code
        assert message in error.message


async def _talk(call: Any) -> None:
    await call.write(agent_pb2.ConnectRequest(hello=agent_pb2.AgentHello()))
    assert (await call.read()).welcome.epoch == 7
    await call.write(agent_pb2.ConnectRequest(status=agent_pb2.AllocationStatus()))
    await call.read()


async def test_a_taken_port_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        listen = f"127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(GanglineError) as caught:
            await serve(listen, add_services, authenticate)
    assert caught.value.code == "server.port_in_use"
    assert caught.value.message == (
        f"cannot listen on {listen}: the port is in use; stop what uses it or choose another with --listen"
    )


async def test_two_servers_cannot_share_a_port() -> None:
    async with serving() as server:
        with pytest.raises(GanglineError, match="the port is in use"):
            await serve(server.address, add_services, authenticate)


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1:http", "127.0.0.1:70000"])
async def test_a_malformed_address_is_refused(listen: str) -> None:
    with pytest.raises(GanglineError) as caught:
        await serve(listen, add_services, authenticate)
    assert caught.value.code == "server.bad_address"


async def test_tls_asks_for_a_client_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, client = authority.issue("server"), authority.issue("client")
    ca = authority.ca_file.read_bytes()
    with_certificate = grpc.ssl_channel_credentials(ca, client.key_file.read_bytes(), client.cert_file.read_bytes())
    async with serving(ServerTls(pair.cert_file, pair.key_file, authority.ca_file)) as server:
        assert await _submit_over_tls(server, with_certificate) == "ann"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _submit_over_tls(server, grpc.ssl_channel_credentials(ca))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def _submit_over_tls(server: Server, credentials: grpc.ChannelCredentials) -> str:
    async with grpc.aio.secure_channel(server.address, credentials, options=CHANNEL_OPTIONS) as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        request = scheduler_pb2.SubmitExperimentRequest()
        answer = await stub.SubmitExperiment(request, metadata=token_metadata("token of ann"), timeout=5)
        return str(answer.warnings[1])
