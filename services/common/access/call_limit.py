"""Limits on calls that hold a place of a grpc server: calls without a token, and streams.

Owns the reading of a call that anybody may make: its caller's address is judged before its message is read, the message
has to arrive in time, and few of one address are read at a time. Owns also the number of streams that one address may
hold, so that one host cannot take all places of a server. `services/common/interceptor.py` applies the limits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from gangline.errors import ErrorKind, GanglineError

# Time for the message of a call without a token.
OPEN_SECONDS = 5.0
# Calls without a token whose messages are read at a time, of one address. Further ones wait.
MAX_READ_OF_PEER = 4


class StrangerGuard(Protocol):
    """Judges callers without a token by their addresses."""

    def check_address(self, peer: str) -> None:
        """Raises GanglineError for an address whose calls are not even read."""

    def fail_address(self, peer: str) -> None:
        """Counts a call whose message could not be read."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Holds the limits of a server."""

    # the most bytes of one message, where it is not MAX_MESSAGE_BYTES
    bytes_by_method: Mapping[str, int] = field(default_factory=dict)
    guards: Mapping[str, StrangerGuard] = field(default_factory=dict)  # checks for the methods that need no token
    # seconds that each message of the stream may take to arrive
    seconds_by_method: Mapping[str, float] = field(default_factory=dict)
    streams_of_peer: int | None = None  # the most streams of one address; None for no limit


class PeerCount:
    """Counts what each peer holds. most: None for no limit."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._num_by_peer: Counter[str] = Counter()

    @contextmanager
    def held(self, peer: str) -> Iterator[None]:
        """Counts one more while it lasts. Raises GanglineError `rpc.too_many_streams`."""
        if self._most is not None and self._num_by_peer[peer] >= self._most:
            text = f"your address holds {self._most} streams at this server, which is the most; end some of them"
            raise GanglineError("rpc.too_many_streams", text, ErrorKind.FORBIDDEN)
        self._num_by_peer[peer] += 1
        try:
            yield
        finally:
            self._num_by_peer[peer] -= 1
            if not self._num_by_peer[peer]:
                del self._num_by_peer[peer]


class OpenReader:
    """Reads the messages of calls without a token."""

    def __init__(self) -> None:
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._num_waiting: Counter[str] = Counter()

    async def read(self, guard: StrangerGuard, peer: str, requests: AsyncIterator[Any]) -> Any:
        """Returns the call's message. Raises GanglineError `rpc.too_slow`, and what the guard raises."""
        guard.check_address(peer)
        async with self._turn(peer):
            guard.check_address(peer)
            try:
                async with asyncio.timeout(OPEN_SECONDS):
                    return await anext(requests, None)
            except TimeoutError:
                guard.fail_address(peer)
                raise too_slow(OPEN_SECONDS) from None

    @asynccontextmanager
    async def _turn(self, peer: str) -> AsyncIterator[None]:
        turns = self._turns.setdefault(peer, asyncio.Semaphore(MAX_READ_OF_PEER))
        self._num_waiting[peer] += 1
        try:
            async with turns:
                yield
        finally:
            self._num_waiting[peer] -= 1
            if not self._num_waiting[peer]:
                del self._num_waiting[peer], self._turns[peer]


def too_slow(seconds: float) -> GanglineError:
    return GanglineError(
        "rpc.too_slow", f"no message of this call arrived within {seconds:g} s; try again", ErrorKind.TIMEOUT
    )
