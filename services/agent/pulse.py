"""Heartbeats from a thread and over a connection of their own, beside those on the agent's stream.

The event loop of the agent waits for the disk whenever its journal is written, and on a busy machine one such wait may
take longer than an agent's lease. This thread waits for nothing but its own clock. It does not speak for a loop that
has stopped for good: without a sign of life from it for STALLED_SECONDS the heartbeats cease. The link starts one
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

from gangline import rpc
from gangline.v1 import agent_pb2, agent_pb2_grpc

# Longer than a disk that works takes for one write, however busy it is.
STALLED_SECONDS = 30.0
PRIORITY = -10

log = structlog.get_logger(__name__)


class Pulse:
    """alive_at: when the event loop was last seen at work, by the monotonic clock. `start` and `stop` once each; both
    return at once."""

    def __init__(
        self,
        address: str,
        metadata: Sequence[tuple[str, str]],
        request: agent_pb2.HeartbeatRequest,
        beat_seconds: float,
        alive_at: Callable[[], float],
    ) -> None:
        self._address = address
        self._metadata = tuple(metadata)
        self._request = request
        self._beat_seconds = beat_seconds
        self._alive_at = alive_at
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                with grpc.insecure_channel(self._address, options=rpc.CHANNEL_OPTIONS) as channel:
                    stub = agent_pb2_grpc.AgentServiceStub(channel)
                    stub.Heartbeat(self._beats(), metadata=self._metadata)
            except grpc.RpcError as failure:
                if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
                    # A scheduler of an earlier version: the heartbeats on the stream are all there is.
                    return
                log.debug("a heartbeat was not taken", address=self._address, status=failure.code().name)
            self._is_over.wait(self._beat_seconds)

    def _beats(self) -> Iterator[agent_pb2.HeartbeatRequest]:
        """Runs in a thread of grpc's, which sends what this yields."""
        with suppress(OSError):
            # Of this thread alone, and only where the agent may: what the agent starts must not inherit it.
            os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
        while not self._is_over.is_set():
            if time.monotonic() - self._alive_at() < STALLED_SECONDS:
                yield self._request
            self._is_over.wait(self._beat_seconds)
