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
from typing import Literal

import grpc
import grpc.aio
import structlog

from gangline.domain.peer_name import PeerName, parse_peer_names
from gangline.errors import ErrorKind, GanglineError
from gangline.protocol.rpc import MAX_MESSAGE_BYTES, SERVER_OPTIONS
from services.common.access.call_limit import CallLimits
from services.common.address import bind_error, join_address, split_address
from services.common.concurrency import cancel
from services.common.connection.open_files import fit_connections
from services.common.connection.stranger_watch import StrangerWatch
from services.common.interceptor import NO_LIMITS, CallInterceptor, Context, NoteRefused, OpenCalls, WatchStream
from services.common.tls.identity import TlsIdentity
from services.common.tls.server_credentials import grpc_credentials

_log = structlog.get_logger(__name__)

# Concurrent calls of all callers together: agents and runners hold one or two each. Further calls are refused with
# RESOURCE_EXHAUSTED.
MAX_CALLS = 8192
# Limit for the end of handlers that were cancelled.
CANCEL_SECONDS = 5.0
CONNECTIONS_OPTION = "grpc.max_allowed_incoming_connections"
# gRPC's word for the names in a client's certificate.
_NAMES_KEY = "x509_subject_alternative_name"
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
    """The TLS of a server."""

    identity: TlsIdentity
    asks_for_certificate: bool = False  # if set, only clients with a certificate of the cluster may connect


Authenticate = Callable[[str, str | None], Awaitable[Principal]]

_principal: ContextVar[Principal] = ContextVar("principal")
_peers: ContextVar[tuple[PeerName, ...] | None] = ContextVar("peers", default=None)


def current_principal() -> Principal:
    """Returns the caller of the call that this handler serves. A call outside of a handler is a bug."""
    return _principal.get()


def current_peers() -> tuple[PeerName, ...] | None:
    """Returns the names of this cluster in the caller's certificate; None for a server that asks for none."""
    return _peers.get()


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
    stream as well. options: of grpc, beside rpc.SERVER_OPTIONS. tls: None for plain text. note_refused:
    receives method, peer and error of a call whose caller is not admitted. watch_stream: ends a stream whose caller is
    not admitted any more, also while it carries nothing.

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
    note_peers = _peer_reader(tls) if tls is not None and tls.asks_for_certificate else None

    def note_admitted(context: Context) -> None:
        """Runs in the task of the handler."""
        strangers.note_admitted(context.peer())
        if note_peers is not None:
            note_peers(context)

    interceptor = CallInterceptor(
        admit,
        limits,
        catch_up,
        is_readmitting=is_readmitting,
        note_admitted=note_admitted,
        note_refused=note_refused,
        watch_stream=watch_stream,
    )
    server = grpc.aio.server(interceptors=[interceptor], options=[*merged.items()], maximum_concurrent_rpcs=MAX_CALLS)
    add_services(server)
    try:
        if tls is None:
            real_port = server.add_insecure_port(listen)
        else:
            credentials = grpc_credentials(tls.identity, asks_for_certificate=tls.asks_for_certificate)
            real_port = server.add_secure_port(listen, credentials)
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


def _peer_reader(tls: ServerTls) -> Callable[[Context], None]:
    """Returns what notes the names in a caller's certificate, for the handler of its call."""
    cluster = tls.identity.cluster

    def note(context: Context) -> None:
        texts = [name.decode(errors="replace") for name in context.auth_context().get(_NAMES_KEY, ())]
        # An authority of the house may sign for several clusters.
        _peers.set(tuple(name for name in parse_peer_names(texts) if name.cluster == cluster))

    return note
