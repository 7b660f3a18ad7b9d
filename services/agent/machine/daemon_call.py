"""Runs calls that may block for ever, such as those into a driver, in daemon threads, which do not delay the agent's
end.

asyncio's executor would wait for its threads when the agent stops, for as long as a broken GPU blocks them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def start_call(function: Callable[[], T]) -> asyncio.Future[T]:
    """Starts the call in a thread and returns a future of its result or error. If the future is cancelled, the thread
    continues and its result is dropped."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - it is raised where the future is awaited
            tell(_fail, future, error)
        else:
            tell(_succeed, future, result)

    def tell(settle: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop has ended, so nothing waits for the result
            loop.call_soon_threadsafe(settle, *arguments)

    threading.Thread(target=run, daemon=True).start()
    return future


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
