"""Runs the application in uvicorn on the gateway's own event loop. __main__ handles the signals."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from email.utils import formatdate
from functools import lru_cache
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.h11_impl import H11Protocol

from services.common.address import bind_error, join_address, split_address
from services.common.connection.open_files import fit_connections
from services.gateway.http.browser.cookie_rule import guard_headers
from services.gateway.http.serving.connection_limit import MAX_CONNECTIONS, MAX_OF_ADDRESS, ConnectionTable, Networks
from services.gateway.http.serving.middleware import Guard
from services.gateway.http.tunnel.upgrade import Upgrades

# How long a stop waits for requests in progress.
SHUTDOWN_SECONDS = 2
# From the first byte of a request until its headers are complete; on a new connection, from its start.
HEADER_SECONDS = 10.0
# An idle connection is closed after this time. Clients commonly close theirs after 5 to 60 s. The gateway closes later
# than they do: a request that is sent while the other side closes is lost, and its sender sees a reset connection.
IDLE_SECONDS = 75
# Most bytes of a request's headers.
MAX_HEADER_BYTES = 32 << 10
# While a body arrives, at least so many bytes have to come in each of these periods. A caller that is not admitted has
# one period for all of its body.
BODY_SECONDS = 10.0
MIN_BODY_BYTES = 32 << 10
# The part of the process's open files that is for HTTP connections; half of it is for gRPC.
_FILES_DIVISOR = 4
# What a connection on a reserved place may ask.
_HEALTH_PATHS = frozenset({"/healthz", "/readyz"})


class _Connection(H11Protocol):
    """Closes a connection whose headers or body do not arrive in time, and connections without a place.

    uvicorn waits for ever for the first request, and for the rest of any request that has begun. It closes idle
    connections itself, after IDLE_SECONDS.
    """

    was_admitted = False
    _deadline: asyncio.TimerHandle | None = None
    _body_deadline: asyncio.TimerHandle | None = None
    # Of the present period: bytes of the body, and whether the gateway itself read no further.
    _num_body_bytes = 0
    _was_paused = False

    @property
    def is_busy(self) -> bool:
        is_serving = self.cycle is not None and not self.cycle.response_complete
        return is_serving and "principal" in self.scope["state"]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        place = self._table.enter(self, self.client[0] if self.client else "")
        if isinstance(place.closed, _Connection):
            place.closed.transport.abort()
        if place.is_reserve:
            self.app = _only_health(self.app)
        self._watch()

    def data_received(self, data: bytes) -> None:
        self.server_state.default_headers = _date_header(int(time.time()))
        self._num_body_bytes += len(data)
        super().data_received(data)
        self._was_paused = self._was_paused or self.flow.read_paused
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP request as uvicorn does, with the headers of all other answers."""
        headers = guard_headers([(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")])
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=msg.encode("ascii")),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def on_response_complete(self) -> None:
        self.was_admitted = self.was_admitted or "principal" in self.scope["state"]
        super().on_response_complete()
        if self.conn.trailing_data[0]:  # the next request has begun already
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.leave(self)
        self._rest()
        self._stop_body()
        super().connection_lost(exc)

    def _should_upgrade(self) -> bool:
        """Whether the request leaves HTTP for a task. Every other upgrade is ignored, as if it were not asked for."""
        return self._get_upgrade() is not None and self._upgrades.takes(self.scope["path"])

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._rest()
        self._stop_body()
        self._table.leave(self)
        self.connections.discard(self)
        lines = [event.method + b" " + event.target + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in self.headers]
        head = b"\r\n".join([*lines, b"", b""])
        self._upgrades.start(self.transport, self.scope, head, self.conn.trailing_data[0])

    @property
    def _table(self) -> ConnectionTable:
        table = self.config.app.state.connections  # type: ignore[union-attr]  # a FastAPI
        assert isinstance(table, ConnectionTable)
        return table

    @property
    def _upgrades(self) -> Upgrades:
        upgrades = self.config.app.state.upgrades  # type: ignore[union-attr]  # a FastAPI
        assert isinstance(upgrades, Upgrades)
        return upgrades

    def _watch(self) -> None:
        """Runs a deadline until the headers of a request are complete, and then one for its body."""
        if self.transport.is_closing():
            self._rest()
            self._stop_body()
            return
        is_serving = self.cycle is not None and not self.cycle.response_complete
        is_body_open = self.conn.their_state is h11.SEND_BODY
        if is_body_open and self._body_deadline is None:
            self._num_body_bytes, self._was_paused = 0, False
            self._body_deadline = self.loop.call_later(BODY_SECONDS, self._check_body)
        elif not is_body_open:
            self._stop_body()
        if is_serving or is_body_open:
            self._rest()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _check_body(self) -> None:
        """Ends a connection whose body stays away. Time in which the gateway reads no further is not the caller's."""
        self._body_deadline = None
        is_moving = self._was_paused or self.flow.read_paused or self._num_body_bytes >= MIN_BODY_BYTES
        if self.is_busy and is_moving:
            self._watch()
        else:
            self.transport.abort()

    def _stop_body(self) -> None:
        if self._body_deadline is not None:
            self._body_deadline.cancel()
            self._body_deadline = None

    def _rest(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


@lru_cache(maxsize=1)
def _date_header(second: int) -> list[tuple[bytes, bytes]]:
    """Returns the headers that uvicorn adds to an answer. second: Unix time."""
    return [(b"date", formatdate(second, usegmt=True).encode())]


_REFUSAL = Guard(service_unavailable)  # type: ignore[arg-type]  # an application in the words of asgiref


def _only_health(app: Any) -> Any:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await (app if scope["path"] in _HEALTH_PATHS else _REFUSAL)(scope, receive, send)

    return answer


class _Server(uvicorn.Server):
    """stopping: set with `should_exit`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    async def main_loop(self) -> None:
        """Sleeps until the stop. uvicorn's own wakes ten times a second, mainly to renew the header Date."""
        await self.stopping.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Represents a running server. address: "host:port" with the real port."""

    def __init__(self, server: _Server, serving: asyncio.Task[None], address: str, upgrades: Upgrades) -> None:
        self._server = server
        self._upgrades = upgrades
        self._serving = serving
        self.address = address

    async def stop(self) -> None:
        """Refuses new requests at once; calls that follow something are cut off after SHUTDOWN_SECONDS."""
        self._server.should_exit = True
        self._server.stopping.set()
        await self._upgrades.close()
        await self._serving


async def serve_http(
    app: FastAPI, listen: str, trusted_proxies: Sequence[str] = (), tls: ssl.SSLContext | None = None
) -> HttpServer:
    """Returns once the server accepts requests. trusted_proxies: addresses and networks whose X-Forwarded-For names the
    caller; from other peers it means nothing. tls: None for plain text. Raises GanglineError `server.port_in_use`."""
    most = fit_connections(MAX_CONNECTIONS, _FILES_DIVISOR, "the HTTP server")
    listening = _bind(listen)
    app.state.is_secure = tls is not None
    app.state.connections = ConnectionTable(
        Networks(trusted_proxies), most=most, most_of_address=min(MAX_OF_ADDRESS, most // 4)
    )
    # log_config None: logging is configured by __main__ alone.
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        server_header=False, http=_Connection, h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_keep_alive=IDLE_SECONDS, proxy_headers=bool(trusted_proxies), forwarded_allow_ips=[*trusted_proxies],
    )  # fmt: skip
    if tls is not None:
        # uvicorn would make a context of its own from paths, which never reads them again.
        config.load()
        config.ssl = tls
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]), name="http")
    host, _ = split_address(listen)
    # The socket listens already: a client that connects before uvicorn accepts just waits.
    return HttpServer(server, serving, join_address(host, listening.getsockname()[1]), app.state.upgrades)


def _bind(listen: str) -> socket.socket:
    host, port = split_address(listen)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(target)
        listening.listen(128)
    except OSError as failure:
        raise bind_error(listen, failure, "--http-listen") from failure
    listening.setblocking(False)
    return listening
