"""One reading for all callers that wait for it together, with the failure that it may end with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gangline.errors import GanglineError


class SharedReading:
    """Owns when something is read. What is read is kept by its caller."""

    def __init__(self, least_seconds: float) -> None:
        """least_seconds: between the beginnings of two readings."""
        self._least_seconds = least_seconds
        self._began_at = float("-inf")
        self._failure: GanglineError | None = None
        self._lock = asyncio.Lock()

    async def refresh(self, read: Callable[[], Awaitable[None]]) -> None:
        """Reads, or waits for the reading of another caller that began after this call. Raises what that one raised."""
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        async with self._lock:
            if self._began_at >= asked_at:
                if self._failure is not None:
                    raise self._failure
                return
            await asyncio.sleep(max(0.0, self._began_at + self._least_seconds - clock()))
            self._began_at, self._failure = clock(), None
            try:
                await read()
            except GanglineError as error:
                self._failure = error
                raise
            except BaseException:
                # Its caller has gone, or has read what is not for the others. The next one reads in its place.
                self._began_at = float("-inf")
                raise
