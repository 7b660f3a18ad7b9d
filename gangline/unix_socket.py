"""Unix sockets at paths of any length.

The kernel takes 108 bytes; a socket that lies deeper is reached through a handle on its folder. So a socket can lie in
the folder of whatever it belongs to, and go with it. Called by trial runners, ranks, agents and fork servers.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

# The byte that ends it comes to it.
LONGEST_ADDRESS_BYTES = 107


def bind(listener: socket.socket, path: str) -> None:
    """As the socket's own bind, with its errors."""
    with _address(path) as address:
        listener.bind(address)


def connect(connection: socket.socket, path: str) -> None:
    """As the socket's own connect, with its errors."""
    with _address(path) as address:
        connection.connect(address)


@contextmanager
def _address(path: str) -> Iterator[str]:
    if len(os.fsencode(path)) <= LONGEST_ADDRESS_BYTES:
        yield path
        return
    folder, name = os.path.split(path)
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{name}"
    finally:
        os.close(handle)
