"""Wakes listeners by key when something changes.

A listener clears its notification *before* it reads the state and waits afterwards, so a change between the two rings
again and none is missed. Bells carry no data. Everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager


class Notification:
    """Wakes one listener: an event that several keys may set."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, seconds: float | None = None) -> bool:
        """Returns True when it rang, False when so much time passed first. None waits without a limit."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class NotificationBoard:
    """Keeps the notifications of each key."""

    def __init__(self) -> None:
        self._bells: defaultdict[Hashable, set[Notification]] = defaultdict(set)

    @contextmanager
    def listen(self, *keys: Hashable, notification: Notification | None = None) -> Iterator[Notification]:
        """Yields a notification that is set for each of these keys while the block lasts: a new one, or one from
        another board."""
        notification = notification or Notification()
        for key in keys:
            self._bells[key].add(notification)
        try:
            yield notification
        finally:
            for key in keys:
                self._bells[key].discard(notification)
                if not self._bells[key]:
                    del self._bells[key]

    def ring(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            for notification in tuple(self._bells.get(key, ())):
                notification.ring()

    def ring_all(self) -> None:
        self.ring(tuple(self._bells))
