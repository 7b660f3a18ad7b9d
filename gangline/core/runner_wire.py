"""A connection of a rank to its trial runner, over the runner's unix socket.

Each frame holds a RankMessage or a RunnerMessage. Frequent reports go over a second socket, which the runner reads less
often; it reads it before each message of the first one. So no report arrives after a message that was sent later, but
reports may arrive before a message that was sent earlier. Sending never waits for the runner. A background thread sends
what a socket does not take at once. The thread starts with the connection, which is made after the fork, in the rank. A
lost runner ends the rank. `link.py` makes it, and says what is sent.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gangline import frame, unix_socket
from gangline.report_socket import ReportSender
from gangline.v1 import rank_pb2

# The exit code of a rank that has lost its runner.
EXIT_CODE_RUNNER_LOST = 70
# How long the end of a rank waits for its last messages to be sent.
FLUSH_SECONDS = 10.0


class RunnerWire:
    """A connection to the trial runner at the given unix socket; it sends a hello at once.

    on_message and on_lost are called in the background thread: for each message of the runner, and when it goes away,
    which by default ends this process.
    """

    def __init__(
        self,
        path: str,
        rank: int,
        on_message: Callable[[rank_pb2.RunnerMessage], None],
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self._on_message = on_message
        self._on_lost = on_lost or _end_process
        self._pending = bytearray()
        self._lock = threading.Condition()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        unix_socket.connect(self._socket, path)
        self._socket.setblocking(False)
        # The pipe wakes the background thread when the socket has not taken all bytes.
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        self._is_closed = False
        self._path, self._rank = path, rank
        # Made for the first report; None where the runner has no such socket, as one of an earlier version.
        self._reports: ReportSender | None = None
        # Frames that wait for the reports before them.
        self._behind = bytearray()
        self._has_reported = False
        self.send(hello=self._hello())
        self._thread = threading.Thread(target=self._serve, name="gangline-link", daemon=True)
        self._thread.start()

    def send(self, **content: Any) -> None:
        """Sends a RankMessage with this content."""
        with self._lock:
            self._send_frame(frame.pack(rank_pb2.RankMessage(**content).SerializeToString()))

    def report(self, **content: Any) -> None:
        """Sends it over the second socket where the runner has one."""
        with self._lock:
            if not self._has_reported:
                self._has_reported = True
                with suppress(OSError):
                    self._reports = ReportSender(self._path)
                    self._send_report(rank_pb2.RankMessage(hello=self._hello()).SerializeToString())
            packet = rank_pb2.RankMessage(**content).SerializeToString()
            was_stuck = self._has_stuck_reports
            if self._reports is None or not self._reports.takes(packet):
                self._send_frame(frame.pack(packet))
            else:
                self._send_report(packet)
            is_newly_stuck = self._has_stuck_reports and not was_stuck
        if is_newly_stuck:
            self._hurry()

    def send_rank(self, rank: int) -> None:
        """Reports the rank of this process, where it became known only after the connection was made."""
        self._rank = rank
        if self._reports is not None:
            self.report(hello=self._hello())
        self.send(hello=self._hello())

    def flush(self, timeout_seconds: float) -> bool:
        with self._lock:
            return self._lock.wait_for(
                lambda: not (self._pending or self._behind or self._has_stuck_reports), timeout_seconds
            )

    def close(self) -> None:
        """Ends the connection and its thread without ending the process. It may be called twice."""
        self._is_closed = True
        self._wake()
        self._thread.join(FLUSH_SECONDS)

    def _hello(self) -> rank_pb2.RankHello:
        return rank_pb2.RankHello(rank=self._rank, pid=os.getpid())

    @property
    def _has_stuck_reports(self) -> bool:
        return self._reports is not None and self._reports.is_stuck

    def _send_report(self, packet: bytes | None) -> None:
        """Sends a report, or those that are stuck, and then what waits behind them. The caller holds the lock."""
        reports = self._reports
        if reports is None:
            return
        try:
            if packet is None:
                reports.send_waiting()
            else:
                reports.send(packet)
        except OSError:
            # The runner has closed this socket alone.
            for unsent in reports.give_up():
                self._send_frame(frame.pack(unsent))
        if not self._has_stuck_reports and self._behind:
            behind, self._behind = self._behind, bytearray()
            self._send_frame(behind)

    def _hurry(self) -> None:
        """Has the runner read the reports now: it does so before each message, also before an empty one."""
        with self._lock:
            self._send_now(frame.pack(rank_pb2.RankMessage().SerializeToString()))
        self._wake()

    def _send_frame(self, content: bytes | bytearray) -> None:
        """Sends frames after all reports before them. The caller holds the lock."""
        if self._has_stuck_reports:
            self._behind += content
        else:
            self._send_now(content)

    def _send_now(self, content: bytes | bytearray) -> None:
        """The caller holds the lock."""
        is_idle = not self._pending
        # A frame is appended whole under the lock, so frames of several threads do not mix.
        self._pending += content
        if is_idle:
            self._send_pending()
        if self._pending:
            self._wake()

    def _send_pending(self) -> None:
        """Sends what the socket takes now. The caller holds the lock. The thread detects a broken connection."""
        try:
            del self._pending[: self._socket.send(self._pending)]
        except BlockingIOError:
            return
        except OSError:
            self._pending.clear()
        if not self._pending:
            self._lock.notify_all()

    def _wake(self) -> None:
        try:
            os.write(self._wake_writer, b"w")
        except BlockingIOError:
            return

    def _serve(self) -> None:
        received = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_reader, selectors.EVENT_READ)
            selector.register(self._socket, selectors.EVENT_READ)
            while not self._is_closed:
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._pending else 0)
                selector.modify(self._socket, wanted)
                self._watch_reports(selector)
                for key, events in selector.select():
                    if key.fileobj == self._wake_reader:
                        os.read(self._wake_reader, 4096)
                    elif key.fileobj is self._reports:
                        self._send_stuck_reports()
                    elif not self._serve_socket(events, received):
                        self._socket.close()
                        self._on_lost()
                        return
        self._socket.close()
        if self._reports is not None:
            self._reports.close()

    def _watch_reports(self, selector: selectors.BaseSelector) -> None:
        """Waits for the second socket only while reports are stuck."""
        reports = self._reports
        if reports is None:
            return
        is_watched = reports.fileno() in selector.get_map()
        if reports.is_stuck and not is_watched:
            selector.register(reports, selectors.EVENT_WRITE)
        elif is_watched and not reports.is_stuck:
            selector.unregister(reports)

    def _send_stuck_reports(self) -> None:
        with self._lock:
            self._send_report(None)
            self._lock.notify_all()
            is_stuck = self._has_stuck_reports
        if is_stuck:
            self._hurry()

    def _serve_socket(self, events: int, received: bytearray) -> bool:
        """Sends and receives once. Returns False when the runner is gone."""
        if events & selectors.EVENT_WRITE:
            with self._lock:
                self._send_pending()
        if not events & selectors.EVENT_READ:
            return True
        try:
            chunk = self._socket.recv(65536)
        except BlockingIOError:
            return True
        except OSError:
            return False
        received += chunk
        for body in frame.take_bodies(received):
            self._on_message(rank_pb2.RunnerMessage.FromString(body))
        return bool(chunk)


def _end_process() -> None:
    sys.stderr.write("gangline: the trial runner of this rank is gone; the rank ends\n")
    sys.stderr.flush()
    os._exit(EXIT_CODE_RUNNER_LOST)
