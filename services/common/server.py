"""The grpc.aio server of every service.

Owns listening, the authentication of every call, and the mapping of exceptions to grpc status: handlers just raise
GanglineError and call `current_principal()`. It knows no service and no token; the caller brings both. Handlers must be
coroutines or async generators.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import grpc
import grpc.aio
import structlog

from gangline.errors import ErrorKind, GanglineError, invalid
from gangline.protocol.rpc import MAX_MESSAGE_BYTES, SERVER_OPTIONS
from services.common.access.call_limit import CallLimits
from services.common.address import bind_error, join_address, split_address
from services.common.concurrency import cancel
from services.common.connection.open_files import fit_connections
from services.common.connection.stranger_watch import StrangerWatch
from services.common.interceptor import NO_LIMITS, CallInterceptor, NoteRefused, OpenCalls, WatchStream

_log = structlog.get_logger(__name__)

# Concurrent calls of all callers together: agents and runners hold one or two each. Further calls are refused with
# RESOURCE_EXHAUSTED.
MAX_CALLS = 8192
# Limit for the end of handlers that were cancelled.
CANCEL_SECONDS = 5.0
CONNECTIONS_OPTION = "grpc.max_allowed_incoming_connections"
# The part of the process's open files that is for connections of this server.
_FILES_DIVISOR = 2


@dataclass(frozen=True, slots=True)
class Principal:
    """Identifies the caller."""

    kind: Literal["cluster", "user", "allocation", "agent", "anonymous"]
    # The user's name, the id of the allocation or of the agent, or "cluster". Empty for the anonymous caller of a call
    # that needs no token.
    name: str
    is_admin: bool = False


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Names the files for TLS."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None  # if set, only clients with a certificate from it may connect


Authenticate = Callable[[str, str | None], Awaitable[Principal]]

_principal: ContextVar[Principal] = ContextVar("principal")


def current_principal() -> Principal:
    """Returns the caller of the call that this handler serves. A call outside of a handler is a bug."""
    return _principal.get()


class Server:
    """Represents a running server. address: "host:port" with the real port."""

    def __init__(
        self, server: grpc.aio.Server, address: str, open_calls: OpenCalls, watching: asyncio.Task[None]
    ) -> None:
        self.address = address
        self._server = server
        self._open_calls = open_calls
        self._watching = watching

    async def stop(self, grace_seconds: float = 1.0) -> None:
        """Refuses new calls at once and cancels those that still run after the grace. May be called twice."""
        await self._server.stop(grace_seconds)
        await cancel(self._watching)
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._open_calls.wait_ended()


async def serve(
    listen: str,
    add_services: Callable[[grpc.aio.Server], None],
    authenticate: Authenticate,
    tls: ServerTls | None = None,
    *,
    limits: CallLimits = NO_LIMITS,
    flag: str = "--listen",
    catch_up: Callable[[], Awaitable[None]] | None = None,
    is_readmitting: bool = False,
    options: Sequence[tuple[str, int]] = (),
    note_refused: NoteRefused | None = None,
    watch_stream: WatchStream | None = None,
) -> Server:
    """Serves until stopped.

    authenticate: receives the method's full name and the bearer token; returns the caller or raises GanglineError. It
    is called before any of the request is read. flag: the command line's name of `listen`, for messages. catch_up: runs
    before a call that asks for it (rpc.CATCH_UP_METADATA). is_readmitting: `authenticate` runs before each answer of a
    stream as well. options: of grpc, beside rpc.SERVER_OPTIONS. note_refused: receives method,
    peer and error of a call whose caller is not admitted. watch_stream: ends a stream whose caller is not admitted any
    more, also while it carries nothing.

    Raises GanglineError `server.port_in_use`.
    """
    num_connections = fit_connections(dict(SERVER_OPTIONS)[CONNECTIONS_OPTION], _FILES_DIVISOR, "the gRPC server")
    host, port = split_address(listen)
    # Another process may take the port in between; then grpc's own error is reported.
    _check_free(listen, host, port, flag)

    async def admit(method: str, token: str | None) -> None:
        _principal.set(await authenticate(method, token))

    # grpc has one limit for all methods of a server; the interceptor applies the limit of each.
    largest = max([MAX_MESSAGE_BYTES, *limits.bytes_by_method.values()])
    merged = {
        **dict(SERVER_OPTIONS),
        **dict(options),
        "grpc.max_receive_message_length": largest,
        CONNECTIONS_OPTION: num_connections,
    }
    strangers = StrangerWatch(num_connections)
    interceptor = CallInterceptor(
        admit,
        limits,
        catch_up,
        is_readmitting=is_readmitting,
        note_admitted=strangers.note_admitted,
        note_refused=note_refused,
        watch_stream=watch_stream,
    )
    server = grpc.aio.server(interceptors=[interceptor], options=[*merged.items()], maximum_concurrent_rpcs=MAX_CALLS)
    add_services(server)
    try:
        if tls is None:
            real_port = server.add_insecure_port(listen)
        else:
            real_port = server.add_secure_port(listen, _load_credentials(tls))
    except RuntimeError as error:
        raise GanglineError(
            "server.cannot_listen", f"cannot listen on {listen}: {error}", ErrorKind.CONFLICT
        ) from error
    await server.start()
    address = join_address(host, real_port)
    _log.info("serving grpc", address=address, has_tls=tls is not None)
    watching = asyncio.create_task(strangers.run(real_port), name="strangers")
    return Server(server, address, interceptor.open_calls, watching)


def _check_free(listen: str, host: str, port: int, flag: str) -> None:
    """Checks that the port is free, because grpc only answers "failed to bind" while the kernel's error has the
    reason."""
    if port == 0:
        return
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
            probe.listen()
    except OSError as error:
        raise bind_error(listen, error, flag) from error


def _load_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    try:
        pair = (tls.key_file.read_bytes(), tls.cert_file.read_bytes())
        client_ca = tls.client_ca_file.read_bytes() if tls.client_ca_file else None
    except OSError as error:
        raise invalid("server.unreadable_file", f"cannot read {error.filename}: {error.strerror}") from error
    return grpc.ssl_server_credentials([pair], client_ca, require_client_auth=client_ca is not None)
