"""The HTTP server of a /metrics port, which any client may use without a token.

It is the library's server with a limit: each connection has a thread, and one that asks nothing would keep its thread
and its file for ever. Beyond MAX_CONNECTIONS the server closes the oldest connection of the address with most of them
(`stranger_choice.py`), so one address keeps no other one from reading the metrics.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import prometheus_client

from services.common.connection.peer import plain_host
from services.common.connection.stranger_choice import choose_closed

# Prometheus scrapes over one connection at a time.
MAX_CONNECTIONS = 32
# Time between two looks for an order to end, which never comes. A connection is accepted at once.
_LOOK_SECONDS = 3600.0


class _Server(ThreadingMixIn, WSGIServer):
    """Serves each connection in a thread of its own."""

    daemon_threads = True
    # As many connections wait as a burst of idle ones may have.
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        self._lock = threading.Lock()
        # Connections and their addresses, the oldest first.
        self._open: list[tuple[socket.socket, str]] = []
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.append((request, plain_host(client_address[0])))
            for position in reversed(choose_closed([address for _, address in self._open], MAX_CONNECTIONS)):
                closed, _ = self._open.pop(position)
                # Its thread then reads the end, and closes it.
                with suppress(OSError):
                    closed.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open = [entry for entry in self._open if entry[0] is not request]
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leaves out the traceback of a connection that broke."""


class _Handler(WSGIRequestHandler):
    """timeout: seconds in which a connection must send or take something."""

    timeout = 30

    def log_message(self, *_: Any) -> None:
        """Leaves out the line for each scrape."""


def start_scrape_server(host: str, port: int) -> int:
    """Serves /metrics from threads until the process ends. Returns the port. Raises OSError."""
    family, _, _, _, target = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
        0
    ]
    server_class: type[_Server] = type("_Server", (_Server,), {"address_family": family})
    server = make_server(str(target[0]), port, prometheus_client.make_wsgi_app(), server_class, _Handler)
    threading.Thread(target=server.serve_forever, args=(_LOOK_SECONDS,), daemon=True, name="metrics").start()
    return int(server.server_port)
