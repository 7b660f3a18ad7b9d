"""Sends heartbeats from a thread and over its own connection, in addition to those on the agent's stream.

The agent's event loop waits for the disk whenever it writes the journal. On a busy machine one such wait may take
longer than an agent's lease. This thread waits only for its own clock. It must not keep an agent alive whose loop has
stopped for good: the heartbeats cease when the loop has shown no activity for STALLED_SECONDS. The link starts one
pulse for each stream that was welcomed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import grpc
import structlog

from gangline.protocol import rpc
from gangline.protocol.dialer import PLAIN, Dialer
from gangline.v1 import agent_pb2, agent_pb2_grpc
from services.common.timer_grid import seconds_until_due

# A working disk needs less time for one write, however busy it is.
STALLED_SECONDS = 30.0
# The nice value of the thread, so that ranks on all cores do not delay a heartbeat.
PRIORITY = -10

log = structlog.get_logger(__name__)


class HeartbeatThread:
    """Sends the heartbeats of one stream. alive_at: returns when the event loop was last active, on the monotonic
    clock. dialer: has opened a channel before. `start` and `stop` are called once each; both return at once."""

    def __init__(
        self,
        address: str,
        metadata: Sequence[tuple[str, str]],
        request: agent_pb2.HeartbeatRequest,
        beat_seconds: float,
        alive_at: Callable[[], float],
        *,
        dialer: Dialer = PLAIN,
    ) -> None:
        self._address = address
        self._metadata = tuple(metadata)
        self._request = request
        self._beat_seconds = beat_seconds
        self._alive_at = alive_at
        self._dialer = dialer
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                with self._dialer.open(self._address, rpc.SMALL_MESSAGE_OPTIONS) as channel:
                    stub = agent_pb2_grpc.AgentServiceStub(channel)
                    stub.Heartbeat(self._beats(), metadata=self._metadata)
            except grpc.RpcError as failure:
                if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
                    # A scheduler of an earlier version does not know the call, so the heartbeats on the stream must do.
                    return
                # The connection is made again after a pause; the link notices by itself that the leader is gone.
                log.debug("a heartbeat was not taken", address=self._address, status=failure.code().name)
            self._is_over.wait(self._beat_seconds)

    def _beats(self) -> Iterator[agent_pb2.HeartbeatRequest]:
        """Yields the heartbeats to send. Runs in a thread of grpc."""
        with suppress(OSError):
            # The priority changes for this thread alone, so that processes that the agent starts do not inherit it. An
            # agent without the right to change it continues without.
            os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
        while not self._is_over.is_set():
            if time.monotonic() - self._alive_at() < STALLED_SECONDS:
                yield self._request
            self._is_over.wait(seconds_until_due(self._beat_seconds, time.monotonic()))
