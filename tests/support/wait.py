"""Waiting in tests: for a condition, with a deadline, never for a length of time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def pause(began_at: float) -> float:
    """Returns the seconds until the next look at a condition: more, the longer it did not hold, so that those who wait
    take little from those they wait for. began_at: in time.monotonic()."""
    return min(0.25, 0.01 + 0.05 * (time.monotonic() - began_at))


async def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Returns when the condition holds; fails, naming what did not happen, when it does not in time."""
    began_at = time.monotonic()
    while not condition():
        assert time.monotonic() < began_at + seconds, f"{what} did not happen within {seconds:g} s"
        await asyncio.sleep(pause(began_at))


def until_sync(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """As `until`, for a test without an event loop."""
    began_at = time.monotonic()
    while not condition():
        assert time.monotonic() < began_at + seconds, f"{what} did not happen within {seconds:g} s"
        time.sleep(pause(began_at))


async def until_async(
    condition: Callable[[], Awaitable[T | None]], what: str | Callable[[], str], seconds: float = 60.0
) -> T:
    """As `until` for a condition that must be awaited; returns the first true value. what: may be a function, which is
    called when it has not happened in time."""
    began_at = time.monotonic()
    while True:
        value = await condition()
        if value:
            return value
        if time.monotonic() >= began_at + seconds:
            named = what if isinstance(what, str) else what()
            raise AssertionError(f"{named} did not happen within {seconds:g} s")
        await asyncio.sleep(pause(began_at))


async def within(seconds: float, awaitable: Awaitable[T]) -> T:
    """The awaitable's result; fails when it takes longer."""
    async with asyncio.timeout(seconds):
        return await awaitable
