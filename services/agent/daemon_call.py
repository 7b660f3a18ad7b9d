"""Calls that may block for ever, as those into a driver: in a daemon thread of their own, which holds up nobody's end.

The executor of asyncio would wait for its threads when the agent stops, for as long as a broken GPU keeps them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def start_call(function: Callable[[], T]) -> asyncio.Future[T]:
    """What it returns or raises, some time. Cancelling the future leaves the thread to itself."""
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
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(settle, *arguments)

    threading.Thread(target=run, daemon=True).start()
    return future


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
