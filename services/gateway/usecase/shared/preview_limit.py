"""How many previews of the queue run at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.common.concurrency import Turns

# Previews at a time, each with two processes. Further ones wait.
AT_A_TIME = 2


class PreviewLimit:
    """Bounds the processes of all callers. A caller has one preview at a time, so others need not wait for many."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_A_TIME)
        self._turns = Turns()

    @asynccontextmanager
    async def enter(self, caller: str) -> AsyncIterator[None]:
        """Waits until this caller may start a preview, and holds its place while the block lasts."""
        async with self._turns.of(caller), self._places:
            yield
