"""Turns a blocking iterator into an asynchronous one: each step runs in a thread, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


async def in_thread(make: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
    """Yields the items. make: called in the thread as well. The iterator is not closed early but left to the garbage
    collector, because a step may still run when the reader goes."""
    # Opening a file blocks as well.
    iterator = await asyncio.to_thread(make)
    while True:
        found = await asyncio.to_thread(_step, iterator)
        if not found:
            return
        yield found[0]


def _step(iterator: Iterator[T]) -> tuple[T, ...]:
    """Returns the next item in a tuple, empty at the end: StopIteration cannot cross a future."""
    for item in iterator:
        return (item,)
    return ()
