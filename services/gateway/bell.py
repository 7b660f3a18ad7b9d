"""Wakes listeners by key when something changes.

A listener clears its bell *before* it reads the state and waits afterwards, so a change between the two rings again and
none is missed. Bells carry no data. Everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager


class Bell:
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


class BellBoard:
    """Keeps the bells of each key."""

    def __init__(self) -> None:
        self._bells: defaultdict[Hashable, set[Bell]] = defaultdict(set)

    @contextmanager
    def listen(self, *keys: Hashable, bell: Bell | None = None) -> Iterator[Bell]:
        """Yields a bell that rings for each of these keys while the block lasts: a new one, or one from another
        board."""
        bell = bell or Bell()
        for key in keys:
            self._bells[key].add(bell)
        try:
            yield bell
        finally:
            for key in keys:
                self._bells[key].discard(bell)
                if not self._bells[key]:
                    del self._bells[key]

    def ring(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            for bell in tuple(self._bells.get(key, ())):
                bell.ring()

    def ring_all(self) -> None:
        self.ring(tuple(self._bells))
