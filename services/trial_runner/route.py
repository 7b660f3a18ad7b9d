"""One gRPC channel to whichever of several addresses answers: the scheduler's or the gateway's.

Owns the channel of the present address, the change to the next one after a failure, the leader that a standby names,
and the growing pause between attempts. It makes no calls itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress

import grpc

from gangline.rpc import CHANNEL_OPTIONS

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 3.0
# A new leader is found within this time. A standby that knows no leader yet keeps the question, so few are asked.
LEADER_PAUSE_SECONDS = 0.5


class Route:
    """what: for messages, as "scheduler". longest_pause_seconds: None for the bound that holds for gateways."""

    def __init__(self, what: str, addresses: Sequence[str], longest_pause_seconds: float | None = None) -> None:
        self._what = what
        self._longest_pause_seconds = longest_pause_seconds
        self._addresses = list(addresses)
        self._cursor = 0
        self._named = ""
        self._failures = 0
        self._hurry = asyncio.Event()
        self._channel: grpc.aio.Channel | None = None

    @property
    def name(self) -> str:
        return f"the {self._what} at {self.address or 'no known address'}"

    @property
    def address(self) -> str:
        return self._named or (self._addresses[self._cursor] if self._addresses else "")

    def channel(self) -> grpc.aio.Channel:
        """To the present address; opened at the first call, so that a process that never asks never connects."""
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS)
        return self._channel

    def learn(self, addresses: Sequence[str]) -> None:
        """Tries these from now on; the present channel stays until it fails."""
        if addresses and list(addresses) != self._addresses:
            self._addresses, self._cursor = list(addresses), 0

    def hurry(self) -> None:
        """Ends the present pause: somebody waits for the answer now, and holds slots meanwhile."""
        self._failures = 0
        self._hurry.set()

    def succeeded(self) -> None:
        self._failures = 0

    async def failed(self, named: str = "") -> None:
        """Turns to the next address after a pause that grows. named: the leader's address, where the answer named it;
        it is the next one then."""
        await self.close()
        if named and named != self._named:
            self._named = named
        else:
            self._named = ""
            self._cursor = (self._cursor + 1) % max(1, len(self._addresses))
        longest = LONGEST_PAUSE_SECONDS if self._longest_pause_seconds is None else self._longest_pause_seconds
        pause = min(longest, FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._hurry.clear()
        with suppress(TimeoutError):
            spread = 0.5 + random.random() / 2  # noqa: S311 - guards nothing
            await asyncio.wait_for(self._hurry.wait(), pause * spread)

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


def route_to_leader(addresses: Sequence[str]) -> Route:
    """Over all schedulers to the one that leads."""
    return Route("scheduler", addresses, LEADER_PAUSE_SECONDS)
