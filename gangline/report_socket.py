"""The socket for what ranks report all the time: metrics of training, and progress.

It lies beside the socket of the trial runner, which is woken by each message. This one is read about once a second
while reports arrive often, so that they do not take a core from the ranks each time. The kernel keeps what was sent,
also when the rank is killed. Each packet is one RankMessage. Called by gangline.core.runner_wire and trial runners.
Standard library only.
"""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress

from gangline import unix_socket

# The largest packet. A larger report goes over the runner's socket.
MOST_BYTES = 64 << 10
# After the path of the runner's socket.
_SUFFIX = ".reports"


def path_beside(runner_path: str) -> str:
    """Returns the path of this socket for that of a trial runner's."""
    return runner_path + _SUFFIX


def make_socket() -> socket.socket:
    """Returns a socket of the right kind, which keeps the bounds of packets and does not block."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


class ReportSender:
    """The rank's end. The caller's lock covers every call."""

    def __init__(self, runner_path: str) -> None:
        """Raises OSError if the trial runner has no such socket, as one of an earlier version."""
        self._socket = make_socket()
        self._waiting: deque[bytes] = deque()
        try:
            unix_socket.connect(self._socket, path_beside(runner_path))
        except OSError:
            self._socket.close()
            raise
        self._most_bytes = min(MOST_BYTES, self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_stuck(self) -> bool:
        """Whether packets wait until the runner has read earlier ones."""
        return bool(self._waiting)

    def takes(self, packet: bytes) -> bool:
        """Returns whether a packet is small enough. False for all after `give_up`."""
        return len(packet) <= self._most_bytes

    def send(self, packet: bytes) -> None:
        """Sends a packet after those that wait, or lets it wait as well. Raises as `send_waiting`."""
        self._waiting.append(packet)
        self.send_waiting()

    def send_waiting(self) -> None:
        """Sends what the kernel takes now. Raises OSError where the connection is broken; then the caller gives up."""
        with suppress(BlockingIOError):
            while self._waiting:
                self._socket.send(self._waiting[0])
                self._waiting.popleft()

    def give_up(self) -> list[bytes]:
        """Returns the packets that were not sent, which the caller sends in another way, and takes no more."""
        waiting = [*self._waiting]
        self._waiting.clear()
        self._most_bytes = -1
        return waiting

    def close(self) -> None:
        self._socket.close()
