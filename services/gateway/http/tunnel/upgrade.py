"""Carries connections that leave HTTP for a task: WebSockets of a notebook, and the tunnel to a shell.

uvicorn hands such a connection over once the head of its request is complete. For a notebook the bytes of both sides
pass unchanged after the head. A shell speaks no WebSocket, so the gateway ends that one, and passes on the content of
its messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import h11
from starlette.datastructures import Headers
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Request, TextMessage
from wsproto.utilities import ProtocolError

from gangline.domain.experiment import Experiment
from gangline.domain.state import TaskKind
from gangline.errors import ErrorKind, GanglineError, not_found
from services.common.concurrency import first_of
from services.common.server import Principal
from services.gateway.audit.action import CONNECT
from services.gateway.http.problem import STATUS_BY_KIND
from services.gateway.http.tunnel import proxy_rule
from services.gateway.http.tunnel.proxy import authenticate
from services.gateway.mirror.auth import Authenticator
from services.gateway.usecase.bundle import UseCases
from services.gateway.usecase.shared.tunnel_table import AdmittedTunnel

# Bytes that are read ahead of a slow task.
MAX_WAITING_BYTES = 256 << 10
# Of an answer's head.
_MAX_HEAD_BYTES = 64 << 10


class Upgrades:
    def __init__(self, usecases: UseCases, authenticator: Authenticator) -> None:
        self._usecases = usecases
        self._authenticator = authenticator
        self._serving: set[asyncio.Task[None]] = set()

    def takes(self, path: str) -> bool:
        return path.startswith(proxy_rule.PREFIX)

    def start(self, transport: asyncio.Transport, scope: Mapping[str, Any], head: bytes, behind: bytes) -> None:
        """Takes a connection over. head: its request as it came. behind: what has come after it."""
        reader = asyncio.StreamReader(limit=MAX_WAITING_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if behind:
            reader.feed_data(behind)
        task = asyncio.create_task(self._serve(reader, writer, {**scope, "is_upgrade": True}, head))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def close(self) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, scope: dict[str, Any], head: bytes
    ) -> None:
        try:
            target = proxy_rule.parse_target(scope["path"])
            if target is None:
                raise not_found("task.not_found", "this address names no task")
            experiment = self._admit(scope, target)
            opening, admit = await self._usecases.tunnels.open(experiment), partial(self._admit, scope, target)
            with opening as opened, self._authenticator.streams.watched(admit, lambda _: opened.close()):
                tunnel = AdmittedTunnel(opened, admit)
                self._note_connection(scope, target)
                if experiment.task_kind is TaskKind.SHELL:
                    await _serve_bytes(reader, writer, tunnel, head)
                else:
                    await _pass_on(reader, writer, tunnel, scope, target)
        except GanglineError as error:
            writer.write(_refusal(error))
        except (ConnectionError, ProtocolError, h11.ProtocolError):
            pass
        finally:
            writer.close()

    def _note_connection(self, scope: dict[str, Any], target: proxy_rule.ProxyTarget) -> None:
        """Leaves a record of the audit log. The code of a shell names no user, so its caller is its owner at most."""
        address = scope["client"][0] if scope.get("client") else ""
        source = {"experiment_id": target.experiment_id}
        principal, token = Principal(kind="anonymous", name=""), None
        proofs = self._usecases.open.task_proofs
        if not target.code or proofs.find_by_code(target.experiment_id, target.code) is None:
            principal, _ = authenticate(self._usecases, self._authenticator, scope, target)
            _, _, token = Headers(raw=list(scope["headers"])).get("authorization", "").partition(" ")
        attempt = self._usecases.trail.attempt("http", CONNECT, principal, token, address, source=source)
        attempt.finish(None)

    def _admit(self, scope: dict[str, Any], target: proxy_rule.ProxyTarget) -> Experiment:
        """Returns the task. Determined's client sends no token to a shell: the code in the shell's id, which only its
        owner and administrators see, takes its place, and the shell's own key follows. A notebook has no such key."""
        proofs = self._usecases.open.task_proofs
        if target.code and (shell := proofs.find_by_code(target.experiment_id, target.code)) is not None:
            return shell
        principal, _ = authenticate(self._usecases, self._authenticator, scope, target)
        return self._usecases.of(principal).tunnels.find(target.experiment_id)


async def _pass_on(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    tunnel: AdmittedTunnel,
    scope: dict[str, Any],
    target: proxy_rule.ProxyTarget,
) -> None:
    """Sends the head of the request to the task and that of its answer back, and then all bytes as they come."""
    address = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    headers = proxy_rule.request_headers(scope["headers"], is_upgrade=True)
    await tunnel.write(_head(b"GET " + address + b" HTTP/1.1", headers))
    answer, rest = await _read_head(tunnel)
    parsed = proxy_rule.parse_head(answer)
    if parsed is None:
        raise ConnectionError("the head of the task's answer is damaged")
    line, pairs = parsed
    is_upgrade = line.split(b" ")[1:2] == [b"101"]
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    answered = proxy_rule.response_headers(pairs, target, host, is_upgrade=is_upgrade)
    if not is_upgrade:
        answered.append((b"connection", b"close"))
    writer.write(_head(line, answered) + rest)
    await writer.drain()
    await first_of(_forward(reader, tunnel), _backward(tunnel, writer))


async def _forward(reader: asyncio.StreamReader, tunnel: AdmittedTunnel) -> None:
    while data := await reader.read(64 << 10):
        await tunnel.write(data)


async def _backward(tunnel: AdmittedTunnel, writer: asyncio.StreamWriter) -> None:
    while data := await tunnel.read():
        writer.write(data)
        await writer.drain()


async def _read_head(tunnel: AdmittedTunnel) -> tuple[bytes, bytes]:
    """Returns the head of the task's answer, and the bytes behind it. Raises ConnectionError."""
    received = b""
    while b"\r\n\r\n" not in received:
        data = await tunnel.read()
        if not data or len(received) > _MAX_HEAD_BYTES:
            raise ConnectionError("the task gave no answer")
        received += data
    head, _, rest = received.partition(b"\r\n\r\n")
    return head, rest


async def _serve_bytes(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tunnel: AdmittedTunnel, head: bytes
) -> None:
    """Ends the WebSocket here. The content of its binary messages passes to the task, and the task's bytes become
    binary messages."""
    socket = WSConnection(ConnectionType.SERVER)
    socket.receive_data(head)
    if not any(isinstance(event, Request) for event in socket.events()):
        raise ConnectionError("this is no WebSocket")
    writer.write(socket.send(AcceptConnection()))

    async def forward() -> None:
        while data := await reader.read(64 << 10):
            socket.receive_data(data)
            for event in socket.events():
                if isinstance(event, BytesMessage):
                    await tunnel.write(bytes(event.data))
                elif isinstance(event, Ping):
                    writer.write(socket.send(event.response()))
                elif isinstance(event, CloseConnection | TextMessage):
                    return

    async def backward() -> None:
        while data := await tunnel.read():
            writer.write(socket.send(BytesMessage(data)))
            await writer.drain()
        writer.write(socket.send(CloseConnection(code=1000)))

    await first_of(forward(), backward())


def _head(line: bytes, headers: proxy_rule.Headers) -> bytes:
    return b"\r\n".join([line, *(name + b": " + value for name, value in headers), b"", b""])


def _refusal(error: GanglineError) -> bytes:
    status = 502 if error.kind is ErrorKind.UNAVAILABLE else STATUS_BY_KIND[error.kind].value
    body = (error.message + "\n").encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    return _head(f"HTTP/1.1 {status} Refused".encode(), headers) + body
