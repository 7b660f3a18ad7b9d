"""Binds and connects unix sockets at paths of any length.

The kernel takes addresses of 108 bytes; a socket with a longer path is reached through a handle on its folder. So a
socket can lie in the folder of its owner, and is removed with it. Called by trial runners, ranks, agents and fork
servers.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

# The kernel's 108 bytes less the byte that ends the address.
LONGEST_ADDRESS_BYTES = 107


def bind(listener: socket.socket, path: str) -> None:
    """Binds as the socket's own bind does, with its errors."""
    with _address(path) as address:
        listener.bind(address)


def connect(connection: socket.socket, path: str) -> None:
    """Connects as the socket's own connect does, with its errors."""
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
        # The kernel resolves this short path through the open handle, so the folder's length does not count.
        yield f"/proc/self/fd/{handle}/{name}"
    finally:
        os.close(handle)
