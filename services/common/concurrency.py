"""Runs awaitables side by side until the first of them ends, ends tasks that are no longer needed, repeats what fails
at the start of a service because a peer is away, and lets callers take turns.

Owns how results, errors and cancellation of such tasks are treated, so that no caller decides it by itself. Called by
all services. A caller whose other tasks must continue waits with asyncio.wait instead.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar, overload
from weakref import WeakValueDictionary

import structlog

from gangline.errors import ErrorKind, GanglineError

# Pause between two tries to reach a peer.
RETRY_SECONDS = 0.5
# Time after which the same reason is logged again.
REPEAT_SECONDS = 10.0

A = TypeVar("A")
B = TypeVar("B")
log = structlog.get_logger(__name__)


@overload
async def first_of(first: Awaitable[A], second: Awaitable[B], /) -> A | B: ...
@overload
async def first_of(*steps: Awaitable[Any]) -> Any: ...
async def first_of(*steps: Awaitable[Any]) -> Any:
    """Runs the steps at the same time until the first one ends. Cancels the others and returns the step's result.

    Several steps may end in the same turn of the event loop. Then the first of them, in the order of the arguments,
    counts. But an error of any of them is raised before a result is returned.
    The call returns only when all steps have ended. Results and errors of cancelled steps are dropped. If the caller is
    cancelled, all steps are cancelled. A task as a step is cancelled like a coroutine.
    """
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        # All ended steps are asked before one result is returned, because any of them may have failed.
        results = [task.result() for task in tasks if task.done()]
        return results[0]
    finally:
        await cancel(*tasks)


class Turns:
    """Lets each caller do one thing at a time, beside those of other callers."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, caller: str) -> asyncio.Lock:
        """Returns the caller's lock. It exists as long as it is held or waited for."""
        return self._locks.setdefault(caller, asyncio.Lock())


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancels the tasks, and returns when all have ended. Their results and errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def in_own_thread(work: Callable[[], object], limit_seconds: float) -> bool:
    """Runs the work in a thread that ends with it. Returns whether it ended in time; after that it is left alone, as it
    hangs in the kernel. The work must not raise."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        work()
        # The loop may have been closed meanwhile.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(ended.set)

    thread = threading.Thread(target=run, daemon=True, name="bounded")
    thread.start()
    try:
        async with asyncio.timeout(limit_seconds):
            await ended.wait()
    except TimeoutError:
        return False
    thread.join()
    return True


async def until_available(attempt: Callable[[], Awaitable[A]], peer: str) -> A:
    """Returns the result of the first attempt that succeeds. While the peer is UNAVAILABLE, logs the reason and tries
    again without end: a service that starts before its peers serves once they are there. Raises all other errors.

    peer: a noun for the log, such as "etcd".
    """
    noted, noted_at = "", 0.0
    while True:
        try:
            return await attempt()
        except GanglineError as error:
            if error.kind is not ErrorKind.UNAVAILABLE:
                raise
            if error.message != noted or time.monotonic() - noted_at > REPEAT_SECONDS:
                noted, noted_at = error.message, time.monotonic()
                log.warning("waits for a peer that does not answer", peer=peer, reason=noted)
        await asyncio.sleep(RETRY_SECONDS)
