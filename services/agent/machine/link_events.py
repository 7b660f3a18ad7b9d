"""Reports that a network interface of this machine has changed, as soon as the kernel says so (rtnetlink(7)).

Owns the netlink socket. The messages only say that something has changed; host.py reads what there is now. Without
netlink, as in a sandbox, `wait` returns after its limit alone.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import structlog

# Groups of rtnetlink: changes of links, their carriers included, and of IPv4 addresses (linux/rtnetlink.h).
RTMGRP_LINK = 0x1
RTMGRP_IPV4_IFADDR = 0x10
# Several messages belong to one change, as of a link, its carrier and its addresses.
SETTLE_SECONDS = 0.1
_BYTES = 1 << 16

log = structlog.get_logger(__name__)


class LinkEvents:
    """The changes since the last call of `wait`. Made on the running event loop; `close` ends it."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._socket: socket.socket | None = None
        try:
            self._socket = _open_socket()
        except OSError as error:
            log.warning("changed interfaces are noticed late, because there is no netlink here", error=str(error))
        else:
            asyncio.get_running_loop().add_reader(self._socket, self._on_readable)

    async def wait(self, limit_seconds: float) -> None:
        """Returns shortly after the next change, at the latest after limit_seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_seconds):
                await self._changed.wait()
                await asyncio.sleep(SETTLE_SECONDS)
        self._changed.clear()

    def close(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _on_readable(self) -> None:
        assert self._socket is not None
        self._changed.set()
        try:
            while self._socket.recv(_BYTES):
                pass
        except BlockingIOError:
            pass
        except OSError as error:
            # ENOBUFS: the kernel has dropped messages, so there were changes.
            log.debug("messages of the kernel about interfaces are lost", error=str(error))


def _open_socket() -> socket.socket:
    """Raises OSError where the socket cannot be made or bound."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    try:
        sock.setblocking(False)
        sock.bind((0, RTMGRP_LINK | RTMGRP_IPV4_IFADDR))
    except OSError:
        sock.close()
        raise
    return sock
