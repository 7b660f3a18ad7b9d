"""Runs the application in uvicorn on the gateway's own event loop. Signals stay with __main__."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from services.common.address import bind_error, join_address, split_address

SHUTDOWN_SECONDS = 2


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """address: "host:port" with the real port."""

    def __init__(self, server: uvicorn.Server, serving: asyncio.Task[None], address: str) -> None:
        self._server = server
        self._serving = serving
        self.address = address

    async def stop(self) -> None:
        """Refuses new requests at once; those that follow something are cut after a moment."""
        self._server.should_exit = True
        await self._serving


async def serve_http(app: FastAPI, listen: str) -> HttpServer:
    """Returns once it accepts requests. Raises GanglineError `server.port_in_use`."""
    listening = _bind(listen)
    # log_config None: logging is configured by __main__ alone.
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        server_header=False,
    )  # fmt: skip
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]), name="http")
    host, _ = split_address(listen)
    # The socket listens already: whoever connects before uvicorn accepts just waits.
    return HttpServer(server, serving, join_address(host, listening.getsockname()[1]))


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
