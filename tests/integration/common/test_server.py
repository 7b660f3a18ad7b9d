"""The grpc server that every service runs: who may call, what errors become, and ports that are taken."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from gangline.certificate.authority import Pair, issue
from gangline.domain.allocation import ExitReport
from gangline.domain.peer_name import make_peer_name
from gangline.domain.state import ExitKind
from gangline.errors import ErrorKind, GanglineError, not_found, unauthenticated
from gangline.protocol import wire
from gangline.protocol.peer_status import PeerStatus
from gangline.protocol.rpc import CHANNEL_OPTIONS, SERVER_OPTIONS, error_of, token_metadata
from gangline.v1 import agent_pb2, agent_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc
from services.common import server as server_module
from services.common.access.call_limit import CallLimits
from services.common.connection import stranger_watch
from services.common.server import Principal, Server, ServerTls, current_peers, current_principal, serve
from services.common.tls.identity import TlsIdentity
from tests.support.tls import CLUSTER, files_of, make_certificates


class Scheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Answers with who asks; request ids choose what goes wrong."""

    async def SubmitExperiment(  # noqa: N802 - the method's name in the proto
        self, request: Any, context: Any
    ) -> scheduler_pb2.SubmitExperimentResponse:
        if request.request_id == "unknown":
            raise not_found("test.not_found", "there is no such thing")
        if request.request_id == "long":
            raise not_found("test.long", "\N{ROCKET}" * 100_000 + "\ud800\nthe end")
        if request.request_id == "bug":
            raise ZeroDivisionError("secret detail")
        if request.request_id == "peers":
            return scheduler_pb2.SubmitExperimentResponse(
                warnings=["peers", ", ".join(map(str, current_peers() or ()))]
            )
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
        peer_status = PeerStatus(call)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _talk(call)
        error = error_of(peer_status.of(caught.value), "the test")
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


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1:http", "127.0.0.1:70000", "127.0.0.1:²"])
async def test_a_malformed_address_is_refused(listen: str) -> None:
    with pytest.raises(GanglineError) as caught:
        await serve(listen, add_services, authenticate)
    assert caught.value.code == "server.bad_address"


async def test_only_clients_with_a_certificate_may_connect(tmp_path: Path) -> None:
    folder = make_certificates(tmp_path, "a1")
    ca, certificate, key = (path.read_bytes() for path in files_of(folder, "agent-a1").paths)
    identity = TlsIdentity(files_of(folder, "scheduler"), "scheduler")
    with_certificate = grpc.ssl_channel_credentials(ca, key, certificate)
    async with serving(ServerTls(identity, asks_for_certificate=True)) as server:
        assert await _submit_over_tls(server, with_certificate) == "ann"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _submit_over_tls(server, grpc.ssl_channel_credentials(ca))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_of_another_cluster_has_no_role_here(tmp_path: Path) -> None:
    """An authority of the house may sign for several clusters."""
    folder = make_certificates(tmp_path)
    authority = Pair(folder.ca_path.read_text(), folder.ca_key_path.read_text())
    identity = TlsIdentity(files_of(folder, "scheduler"), "scheduler")
    async with serving(ServerTls(identity, asks_for_certificate=True)) as server:
        for cluster, peers in ((CLUSTER, f"gateway.{CLUSTER}"), ("other", "")):
            pair = issue(authority, make_peer_name("gateway", cluster), (), datetime.now(UTC), 1)
            credentials = grpc.ssl_channel_credentials(
                authority.certificate.encode(), pair.key.encode(), pair.certificate.encode()
            )
            assert await _submit_over_tls(server, credentials, "peers") == peers


async def _submit_over_tls(server: Server, credentials: grpc.ChannelCredentials, request_id: str = "") -> str:
    async with grpc.aio.secure_channel(server.address, credentials, options=CHANNEL_OPTIONS) as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        request = scheduler_pb2.SubmitExperimentRequest(request_id=request_id)
        answer = await stub.SubmitExperiment(request, metadata=token_metadata("token of ann"), timeout=5)
        return str(answer.warnings[1])


SUBMIT = "/gangline.v1.SchedulerService/SubmitExperiment"
CONNECT = "/gangline.v1.AgentService/Connect"


async def test_caller_without_a_token_is_answered_before_its_body_comes() -> None:
    """The call sends its headers and nothing more: an answer shows that the server does not wait for a message."""

    async def never() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async with serving() as server, grpc.aio.insecure_channel(server.address, options=CHANNEL_OPTIONS) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await cast("Any", channel.stream_unary(SUBMIT))(never(), timeout=20)
    assert error_of(caught.value, "the test").code == "test.no_token"


async def test_large_body_without_a_token_stays_where_it_is() -> None:
    """60 MB are offered through a proxy that counts; windows and buffers take the first of them, the server no more."""
    async with serving() as server, counting_proxy(server.address) as (address, counted):
        options = [*CHANNEL_OPTIONS, ("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await cast("Any", channel.unary_unary(SUBMIT))(bytes(60 << 20), timeout=30)
    assert caught.value.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert counted() < 8 << 20


@contextlib.asynccontextmanager
async def counting_proxy(target: str) -> AsyncIterator[tuple[str, Callable[[], int]]]:
    """Its address, and how many bytes have come through it from clients."""
    host, _, port = target.rpartition(":")
    total = 0

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_counted: bool) -> None:
        nonlocal total
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(64 << 10):
                total += len(chunk) if is_counted else 0
                writer.write(chunk)
                await writer.drain()
        writer.close()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(host, int(port))
        await asyncio.gather(carry(reader, forth, is_counted=True), carry(back, writer, is_counted=False))

    async with await asyncio.start_server(serve_one, "127.0.0.1", 0) as proxy:
        own = proxy.sockets[0].getsockname()
        yield f"{own[0]}:{own[1]}", lambda: total


async def test_message_beyond_its_methods_limit_is_one_line() -> None:
    metadata = token_metadata("token of ann")
    limits = {CONNECT: 24 << 20}
    server = await serve("127.0.0.1:0", add_services, authenticate, limits=CallLimits(limits))
    try:
        async with grpc.aio.insecure_channel(server.address, options=CHANNEL_OPTIONS) as channel:
            large = scheduler_pb2.SubmitExperimentRequest(config_json="x" * (5 << 20))
            stub: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.SubmitExperiment(large, metadata=metadata, timeout=30)
            error = error_of(caught.value, "the test")
            assert (error.code, error.kind) == ("rpc.too_large", ErrorKind.INVALID)
            assert "at most 4194304 bytes, this one has 52428" in error.message
            agents: Any = agent_pb2_grpc.AgentServiceStub(channel)
            call = agents.Connect(metadata=metadata, timeout=30)
            await call.write(agent_pb2.ConnectRequest(hello=hello_of(1000)))
            assert (await call.read()).welcome.epoch == 7
    finally:
        await server.stop(0)


def hello_of(num_allocations: int) -> agent_pb2.AgentHello:
    """The largest that an agent sends: each allocation has ended with all lines that are kept of it."""
    exit_report = ExitReport("a1", ExitKind.USER_ERROR, "m" * 2000, last_lines=("l" * 500,) * 20)
    hello = agent_pb2.AgentHello()
    for number in range(num_allocations):
        status = hello.allocations.add(allocation_id=f"{number}.1.1")
        status.exit.CopyFrom(wire.to_proto(exit_report))
    return hello


@pytest.mark.parametrize("method", [SUBMIT, CONNECT])
async def test_bytes_that_are_no_message_are_one_line(method: str) -> None:
    metadata = token_metadata("token of ann")
    async with serving() as server, grpc.aio.insecure_channel(server.address, options=CHANNEL_OPTIONS) as channel:
        # A unary method takes the one message of a stream as well.
        call = cast("Any", channel.stream_stream(method))(iter([b"\xff\xff"]), metadata=metadata, timeout=20)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    error = error_of(caught.value, "the test")
    assert (error.code, error.kind) == ("rpc.malformed", ErrorKind.INVALID)


async def test_long_line_of_an_error_arrives_cut() -> None:
    async with serving() as server:
        with pytest.raises(GanglineError) as caught:
            await submit(server, "long")
    assert caught.value.code == "test.long"
    assert caught.value.message.startswith("\N{ROCKET}")
    assert caught.value.message.endswith("the end")
    assert 1190 < len(caught.value.message) <= 1200


async def test_connection_that_never_speaks_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an eighth of the server's times."""
    short = [(name, value // 8 if name.endswith("_ms") else value) for name, value in SERVER_OPTIONS]
    monkeypatch.setattr(server_module, "SERVER_OPTIONS", short)
    async with serving() as server:
        host, _, port = server.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await asyncio.wait_for(_until_end(reader), 40)
        writer.close()


async def _until_end(reader: asyncio.StreamReader) -> None:
    """The server's own settings come before the end."""
    with contextlib.suppress(ConnectionError):
        while await reader.read(4096):
            pass


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::]:0", "0.0.0.0:0"])
async def test_a_stranger_loses_its_connection_and_an_admitted_caller_keeps_its_own(
    listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a server that keeps four connections. Beside an admitted one, two are for strangers."""
    monkeypatch.setattr(server_module, "SERVER_OPTIONS", [*SERVER_OPTIONS, (server_module.CONNECTIONS_OPTION, 4)])
    monkeypatch.setattr(stranger_watch, "SCAN_SECONDS", 0.05)
    server = await serve(listen, add_services, authenticate)
    port = int(server.address.rpartition(":")[2])
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel:
            call: Any = agent_pb2_grpc.AgentServiceStub(channel).Connect(metadata=token_metadata("token of ann"))
            await call.write(agent_pb2.ConnectRequest(hello=agent_pb2.AgentHello()))
            assert (await call.read()).welcome.epoch == 7
            opened = [
                await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
                for source in ("127.0.0.1", "127.0.0.1", "127.0.0.3")
            ]
            await asyncio.wait_for(_until_end(opened[0][0]), 30)
            assert not opened[1][0].at_eof()
            assert not opened[2][0].at_eof()
            await call.write(agent_pb2.ConnectRequest(hello=agent_pb2.AgentHello()))
            assert (await call.read()).welcome.epoch == 7
            call.cancel()
            for _, writer in opened:
                writer.close()
    finally:
        await server.stop(0)
