"""One gRPC channel to the first of several addresses that answers: those of the schedulers or of the gateways.

Owns the channel to the current address, the change to the next one after a failure, and the back-off between attempts.
Owns the leader's address too, if a standby named it. Owns the search for gateways, which come, go and move while a
runner or the drainer lives: after each failure it reads where the agent last heard of them. It makes no calls itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress

import grpc

from gangline.domain.peer_name import GATEWAY, SCHEDULER
from gangline.protocol.dialer import PLAIN, Dialer
from gangline.protocol.rpc import CHANNEL_OPTIONS, raise_if_cancelled
from services.common.state_folder import StateFolder

# Back-off after the first failure; it doubles with each further one.
FIRST_PAUSE_SECONDS = 0.05
# Cap of the back-off for gateways.
LONGEST_PAUSE_SECONDS = 3.0
# Cap of the back-off for schedulers: a new leader is found within this time. A standby that knows no leader keeps the
# request open, so few requests are made.
LEADER_PAUSE_SECONDS = 0.5
# Pause between two looks for a first address.
FIND_SECONDS = 0.5


class ChannelRoute:
    """The current address and its channel. what: a noun for messages, such as "scheduler". longest_pause_seconds: None
    for the cap that holds for gateways. find: returns the addresses as known now; empty for no news.
    dialer: opens the channels."""

    def __init__(
        self,
        what: str,
        addresses: Sequence[str],
        longest_pause_seconds: float | None = None,
        *,
        find: Callable[[], Sequence[str]] = tuple,
        dialer: Dialer = PLAIN,
    ) -> None:
        self._what = what
        self._longest_pause_seconds = longest_pause_seconds
        self._find = find
        self._dialer = dialer
        self._given, self._found = list(addresses), list[str]()
        self._addresses = self._given
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
        """Returns the channel to the current address. It is opened at the first call, so a process that never calls
        never connects."""
        if self._channel is None:
            self._channel = self._dialer.open_async(self.address, CHANNEL_OPTIONS)
        return self._channel

    def learn(self, addresses: Sequence[str]) -> None:
        """Replaces the given addresses, which are tried first from now on; the current channel stays until it fails."""
        if addresses and list(addresses) != self._given:
            self._given = list(addresses)
            self._try_in_order(self._given, self._found)

    async def wait_address(self) -> None:
        """Returns once an address is known; without one there is nothing to call."""
        while not self.address:
            self._look()
            if not self.address:
                await asyncio.sleep(FIND_SECONDS)

    def hurry(self) -> None:
        """Ends the current back-off, because a caller waits for the answer and holds slots meanwhile."""
        self._failures = 0
        self._hurry.set()

    def succeeded(self) -> None:
        self._failures = 0

    async def failed(self, named: str = "") -> None:
        """Changes to the next address after a back-off. named: the leader's address, if the answer named it; it is
        tried next. Raises CancelledError if the failed call has dropped the cancellation of this task."""
        raise_if_cancelled()
        await self.close()
        # A named leader that has failed itself is not tried again at once: the configured addresses follow.
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
            # Random, so that the runners of a cluster do not all return at the same moment.
            spread = 0.5 + random.random() / 2  # noqa: S311 - guards nothing
            async with asyncio.timeout(pause * spread):
                await self._hurry.wait()
        self._look()

    def _look(self) -> None:
        """Tries found addresses first where they are news, because it is not known which are the newer ones."""
        found = list(self._find())
        if found != self._found:
            self._found = found
            self._try_in_order(found, self._given)

    def _try_in_order(self, first: Sequence[str], then: Sequence[str]) -> None:
        self._addresses, self._cursor = list(dict.fromkeys((*first, *then))), 0

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


def route_to_leader(addresses: Sequence[str], state: StateFolder) -> ChannelRoute:
    """Returns a route over all schedulers to the leading one."""
    return ChannelRoute("scheduler", addresses, LEADER_PAUSE_SECONDS, dialer=state.dialer(SCHEDULER))


def route_to_gateways(addresses: Sequence[str], state: StateFolder) -> ChannelRoute:
    """Returns a route over all gateways: those at the addresses first, then those of which the agent has heard."""
    return ChannelRoute("gateway", addresses, find=state.load_gateways, dialer=state.dialer(GATEWAY))
