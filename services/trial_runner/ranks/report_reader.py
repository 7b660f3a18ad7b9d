"""The runner's end of the socket for what ranks report all the time: see gangline/report_socket.py.

It reads a report that comes after a pause at once, and those that follow once a second, because each time it takes a
core from the ranks for a moment. The link calls `read` before each message of a rank, so that no report is passed on
after a message that was sent later. Reports may be passed on before a message that was sent earlier.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from google.protobuf.message import DecodeError

from gangline import report_socket, unix_socket
from gangline.v1 import rank_pb2
from services.common.timer_grid import seconds_until_due

PAUSE_SECONDS = 1.0
_UNKNOWN = -1
# Packets that are read of one connection at a time, so that a rank that sends without end does not hold up the others.
# The kernel keeps fewer by default.
_MOST_PACKETS = 50_000
# After an error of accept(2), as without a free descriptor, until connections are accepted again.
_REST_SECONDS = 1.0

log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class _Connection:
    socket: socket.socket
    rank: int = _UNKNOWN


class ReportReader:
    """Accepts the ranks' connections beside their links, and passes their reports on. runner_path: of the link's
    socket."""

    def __init__(self, runner_path: str, on_message: Callable[[int, rank_pb2.RankMessage], None]) -> None:
        self._runner_path = runner_path
        self._on_message = on_message
        self._listener: socket.socket | None = None
        self._connections: list[_Connection] = []
        self._timer: asyncio.TimerHandle | None = None
        # One byte more than a packet may have, so that a longer one is seen.
        self._buffer = bytearray(report_socket.MOST_BYTES + 1)

    def start(self) -> None:
        self._listener = report_socket.make_socket()
        unix_socket.bind(self._listener, report_socket.path_beside(self._runner_path))
        self._listener.listen(256)
        self._listen()

    def read(self, rank: int) -> None:
        """Passes on what a rank has sent by now."""
        self._accept()
        for connection in [*self._connections]:
            if connection.rank in (rank, _UNKNOWN):
                self._read(connection)

    def close(self) -> None:
        """Reads what is left, and closes. Called when the ranks have gone."""
        if self._listener is None:
            return
        # A rank may have connected, reported and ended before the event loop noticed it.
        self._accept()
        self._ignore()
        for connection in [*self._connections]:
            self._read(connection)
        for connection in [*self._connections]:
            self._drop(connection)
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        self._listener = None

    def _accept(self) -> None:
        if self._listener is None:
            return
        try:
            while True:
                accepted, _ = self._listener.accept()
                accepted.setblocking(False)
                self._connections.append(_Connection(accepted))
                if self._timer is None:
                    asyncio.get_running_loop().add_reader(accepted, self._on_readable)
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            log.error("no connection for reports is accepted for the moment", error=str(error))
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._listener)
            loop.call_later(_REST_SECONDS, self._listen)

    def _listen(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _on_readable(self) -> None:
        """Reads now, and then not before the pause is over."""
        self._ignore()
        try:
            self._read_all()
        finally:
            self._pause()

    def _pause(self) -> None:
        pause_seconds = seconds_until_due(PAUSE_SECONDS, time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(pause_seconds, self._on_pause_over)

    def _on_pause_over(self) -> None:
        self._timer = None
        is_over = False
        try:
            is_over = not self._read_all()
        finally:
            if not is_over:
                self._pause()
        if is_over:
            for connection in self._connections:
                asyncio.get_running_loop().add_reader(connection.socket, self._on_readable)

    def _ignore(self) -> None:
        """Lets the event loop no longer wait for reports."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in self._connections:
            asyncio.get_running_loop().remove_reader(connection.socket)

    def _read_all(self) -> int:
        """Returns the number of reports."""
        return sum(self._read(connection) for connection in [*self._connections])

    def _read(self, connection: _Connection) -> int:
        for count in range(_MOST_PACKETS):
            try:
                num_bytes = connection.socket.recv_into(self._buffer)
            except BlockingIOError:
                return count
            except OSError:
                num_bytes = 0
            if not num_bytes:
                self._drop(connection)
                return count
            try:
                message = _parse(self._buffer, num_bytes)
            except (DecodeError, ValueError) as error:
                log.error(
                    "a rank reported what is no message; its connection is closed",
                    rank=connection.rank,
                    error=str(error),
                )
                self._drop(connection)
                return count
            if message.HasField("hello"):
                connection.rank = message.hello.rank
            else:
                self._on_message(connection.rank, message)
        return _MOST_PACKETS

    def _drop(self, connection: _Connection) -> None:
        asyncio.get_running_loop().remove_reader(connection.socket)
        connection.socket.close()
        self._connections.remove(connection)


def _parse(buffer: bytearray, num_bytes: int) -> rank_pb2.RankMessage:
    if num_bytes > report_socket.MOST_BYTES:
        raise ValueError(f"a packet is over the limit of {report_socket.MOST_BYTES} bytes")
    return rank_pb2.RankMessage.FromString(bytes(memoryview(buffer)[:num_bytes]))
