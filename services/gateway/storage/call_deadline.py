"""Runs blocking calls to the storage in threads, each with a deadline.

A thread cannot be ended from outside. A call that misses its deadline is left behind: its caller continues, and the
thread counts as hung until the call returns. Threads are daemons, so that a hung one does not prevent the gateway from
ending. Used by the cleanup, whose calls may be repeated at any time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from gangline.errors import unavailable
from services.gateway.mirror import metrics

HUNG = "storage.hung"


class DeadlinedCalls:
    """Limits calls. num_threads: concurrent calls, without hung ones. most_hung: with so many hung calls, one call each
    `pause_seconds` tests whether the storage answers again; all others are refused at once."""

    def __init__(self, num_threads: int, seconds: float, most_hung: int, pause_seconds: float) -> None:
        self._slots = asyncio.Semaphore(num_threads)
        self._seconds = seconds
        self._most_hung = most_hung
        self._pause_seconds = pause_seconds
        self._num_hung = 0
        self._closed_until = 0.0

    async def run(self, work: Callable[[], object]) -> None:
        """Runs the work. Raises what the work raises, TimeoutError after the deadline, and GanglineError
        `storage.hung`."""
        async with self._slots:
            now = asyncio.get_running_loop().time()
            # The storage hangs: only one call is let through, to test it.
            if self._num_hung >= self._most_hung:
                if now < self._closed_until:
                    raise unavailable(HUNG, f"{self._num_hung} earlier calls to the storage have not returned")
                self._closed_until = now + self._pause_seconds
            await self._run(work)
            self._closed_until = 0.0

    async def _run(self, work: Callable[[], object]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        is_hung = False

        def finish(failure: BaseException | None) -> None:
            if is_hung:
                self._count(-1)
            elif done.done():
                return
            elif failure is None:
                done.set_result(None)
            else:
                done.set_exception(failure)

        _start(work, finish)
        try:
            await asyncio.wait((done,), timeout=self._seconds)
            if not done.done():
                is_hung = True
                self._count(1)
                raise TimeoutError(f"the storage has not answered within {self._seconds:g} s")
            done.result()
        finally:
            done.cancel()

    def _count(self, change: int) -> None:
        self._num_hung += change
        metrics.HUNG_DELETIONS.inc(change)


def _start(work: Callable[[], object], finish: Callable[[BaseException | None], None]) -> None:
    """Starts the work in a thread. finish: called on the event loop with the exception of the work, or None."""
    loop = asyncio.get_running_loop()

    def run() -> None:
        failure: BaseException | None = None
        try:
            work()
        except Exception as error:  # noqa: BLE001  a storage raises whatever its library raises; the caller gets it
            failure = error
        # The loop may have ended; then no call waits for this result.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(finish, failure)

    threading.Thread(target=run, name="cleanup", daemon=True).start()
