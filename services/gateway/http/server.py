"""Runs the application in uvicorn on the gateway's own event loop. __main__ handles the signals."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from services.common.address import bind_error, join_address, split_address
from services.gateway.http.upgrade import Upgrades

# How long a stop waits for requests in progress.
SHUTDOWN_SECONDS = 2
# From the first byte of a request until its headers are complete; on a new connection, from its start.
HEADER_SECONDS = 10.0
# An idle connection is closed after this time. Clients commonly close theirs after 5 to 60 s. The gateway closes later
# than they do: a request that is sent while the other side closes is lost, and its sender sees a reset connection.
IDLE_SECONDS = 75
# Most bytes of a request's headers.
MAX_HEADER_BYTES = 32 << 10
# Each follower of logs holds one connection. Connections beyond this number are closed at once.
MAX_CONNECTIONS = 2048


class _Connection(H11Protocol):
    """Closes a connection whose headers do not arrive in time, and connections beyond the limit.

    uvicorn waits for ever for the first request, and for the rest of any request whose headers have begun. It closes
    idle connections itself, after IDLE_SECONDS.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.trailing_data[0]:  # the next request has begun already
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def _should_upgrade(self) -> bool:
        """Whether the request leaves HTTP for a task. Every other upgrade is ignored, as if it were not asked for."""
        return self._get_upgrade() is not None and self._upgrades.takes(self.scope["path"])

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._rest()
        self.connections.discard(self)
        lines = [event.method + b" " + event.target + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in self.headers]
        head = b"\r\n".join([*lines, b"", b""])
        self._upgrades.start(self.transport, self.scope, head, self.conn.trailing_data[0])

    @property
    def _upgrades(self) -> Upgrades:
        upgrades = self.config.app.state.upgrades  # type: ignore[union-attr]  # a FastAPI
        assert isinstance(upgrades, Upgrades)
        return upgrades

    def _watch(self) -> None:
        """Runs a deadline until the headers of a request are complete."""
        is_serving = self.cycle is not None and not self.cycle.response_complete
        if is_serving or self.transport.is_closing():
            self._rest()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _rest(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Represents a running server. address: "host:port" with the real port."""

    def __init__(self, server: uvicorn.Server, serving: asyncio.Task[None], address: str, upgrades: Upgrades) -> None:
        self._server = server
        self._upgrades = upgrades
        self._serving = serving
        self.address = address

    async def stop(self) -> None:
        """Refuses new requests at once; calls that follow something are cut off after SHUTDOWN_SECONDS."""
        self._server.should_exit = True
        await self._upgrades.close()
        await self._serving


async def serve_http(app: FastAPI, listen: str) -> HttpServer:
    """Returns once the server accepts requests. Raises GanglineError `server.port_in_use`."""
    listening = _bind(listen)
    # log_config None: logging is configured by __main__ alone.
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        server_header=False, http=_Connection, h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_keep_alive=IDLE_SECONDS,
    )  # fmt: skip
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
