"""Closes connections of strangers at a grpc server before they fill its places.

Owns the list of the server's open connections, which grpc does not show: it is read from /proc/self/fd. The
interceptor reports the peers whose calls are admitted; every other connection is a stranger's. `stranger_choice.py`
chooses. grpc alone would let a stranger hold its places for 2 minutes, and for ever with calls that are refused.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import time
from contextlib import suppress
from dataclasses import dataclass

import structlog

from services.common.connection.peer import plain_host, split_peer
from services.common.connection.stranger_choice import choose_closed, places_of_strangers
from services.common.timer_grid import seconds_until_due

_log = structlog.get_logger(__name__)

SCAN_SECONDS = 1.0
# Scans in a row that are left out while the number of open files stays the same, where the kernel tells that number.
MOST_LEFT_OUT = 4
# Pause after a scan that closed connections, because their owner may open new ones at once.
QUICK_SCAN_SECONDS = 0.1


@dataclass(slots=True)
class _Connection:
    """A connection to the server."""

    peer: tuple[str, str]  # host and port
    fd: int  # file descriptor as the last scan saw it
    is_admitted: bool = False


class StrangerWatch:
    """Watches the connections of one server in this process."""

    def __init__(self, num_places: int) -> None:
        self._num_places = num_places
        # By the inode of the socket, the oldest first. No other socket has the inode while this one is open.
        self._connections: dict[int, _Connection] = {}
        # Inodes of this process's other sockets. Asking each of them at every scan would cost more than the rest of it.
        self._others: set[int] = set()
        # Reported since the last scan.
        self._admitted: set[str] = set()

    def note_admitted(self, peer: str) -> None:
        """Called with the peer of each admitted call, in grpc's form."""
        self._admitted.add(peer)

    async def run(self, port: int) -> None:
        """Scans until it is cancelled. port: the server's."""
        seconds = SCAN_SECONDS
        num_files = num_left_out = 0
        while True:
            await asyncio.sleep(seconds_until_due(seconds, time.monotonic()))
            num_files_before, num_files = num_files, _count_open_files()
            if num_files and num_files == num_files_before and num_left_out < MOST_LEFT_OUT:
                num_left_out += 1
                continue
            num_closed = num_left_out = 0
            try:
                num_closed = self.scan(port)
            except OSError as error:
                _log.warning("cannot read the open connections of a server", port=port, error=str(error))
            seconds = QUICK_SCAN_SECONDS if num_closed else SCAN_SECONDS

    def scan(self, port: int) -> int:
        """Closes the strangers' connections that are too many. Returns their number."""
        self._refresh(port)
        strangers = [inode for inode, connection in self._connections.items() if not connection.is_admitted]
        most = places_of_strangers(self._num_places, len(self._connections) - len(strangers))
        if len(strangers) <= most:
            return 0
        hosts = [self._connections[inode].peer[0] for inode in strangers]
        closed = [strangers[position] for position in choose_closed(hosts, most)]
        for inode in closed:
            _shut(self._connections[inode].fd, inode)
        _log.warning("closed connections without an admitted call", port=port, closed=len(closed), kept=most)
        return len(closed)

    def _refresh(self, port: int) -> None:
        """Reads the open connections, and notes which of them have carried an admitted call."""
        admitted, self._admitted = {split_peer(peer) for peer in self._admitted}, set()
        fd_by_inode = _sockets()
        for inode in self._connections.keys() - fd_by_inode.keys():
            del self._connections[inode]
        self._others &= fd_by_inode.keys()
        for inode, fd in fd_by_inode.items():
            known = self._connections.get(inode)
            if known is not None:
                known.fd = fd
                continue
            if inode in self._others:
                continue
            with suppress(OSError):  # asked again at the next scan
                peer = _peer_of(fd, inode, port)
                if peer is not None:
                    self._connections[inode] = _Connection(peer, fd)
                else:
                    self._others.add(inode)
        for connection in self._connections.values():
            connection.is_admitted = connection.is_admitted or connection.peer in admitted


def _count_open_files() -> int:
    """Returns the number of this process's open files; 0 where it cannot be read, as before Linux 6.2."""
    with suppress(OSError):
        return os.stat("/proc/self/fd").st_size  # noqa: PTH116 - a Path would take longer than the call
    return 0


def _sockets() -> dict[int, int]:
    """Returns the descriptors of this process's sockets by inode, oldest inode first."""
    fd_by_inode: dict[int, int] = {}
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a Path for each of 4096 entries takes 10 ms
        with suppress(OSError):
            status = os.fstat(int(entry))
            if stat.S_ISSOCK(status.st_mode):
                fd_by_inode[status.st_ino] = int(entry)
    return dict(sorted(fd_by_inode.items()))


def _peer_of(fd: int, inode: int, port: int) -> tuple[str, str] | None:
    """Returns the peer of a connection of the server with this port; None for other sockets. Raises OSError where the
    socket cannot be asked now."""
    with _held(fd, inode) as held:
        if held.family not in (socket.AF_INET, socket.AF_INET6) or held.getsockname()[1] != port:
            return None
        try:
            host, peer_port, *_ = held.getpeername()
        except OSError as error:
            if error.errno == errno.ENOTCONN:  # as of the listening socket
                return None
            raise
        return plain_host(host), str(peer_port)


def _held(fd: int, inode: int) -> socket.socket:
    """Returns a second descriptor of the socket with this inode. grpc closes its own at any time, in other threads, and
    the number may then belong to another file. Raises OSError if it does."""
    held = os.dup(fd)
    try:
        if os.fstat(held).st_ino != inode:
            raise OSError(f"descriptor {fd} is another file by now")
        return socket.socket(fileno=held)
    except OSError:
        os.close(held)
        raise


def _shut(fd: int, inode: int) -> None:
    """Ends a connection. grpc notices the end and closes its descriptor itself."""
    with suppress(OSError), _held(fd, inode) as held:
        held.shutdown(socket.SHUT_RDWR)
