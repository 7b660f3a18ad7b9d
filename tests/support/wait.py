"""Waiting in tests: for a condition, with a deadline, never for a length of time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Returns when the condition holds; fails, naming what did not happen, when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        await asyncio.sleep(0.01)


async def until_async(
    condition: Callable[[], Awaitable[T | None]], what: str | Callable[[], str], seconds: float = 60.0
) -> T:
    """As `until` for a condition that must be awaited; returns the first true value. what: may be a function, which is
    called when it has not happened in time."""
    deadline = time.monotonic() + seconds
    while True:
        value = await condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            named = what if isinstance(what, str) else what()
            raise AssertionError(f"{named} did not happen within {seconds:g} s")
        await asyncio.sleep(0.01)


async def within(seconds: float, awaitable: Awaitable[T]) -> T:
    """The awaitable's result; fails when it takes longer."""
    async with asyncio.timeout(seconds):
        return await awaitable
