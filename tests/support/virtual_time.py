"""An event loop in virtual time: it waits for no timer, but sets the clock to when the next one is due."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any

import pytest


class VirtualTime:
    """now: what time.monotonic returns from `run` on. A test may set it forward while a timer runs."""

    def __init__(self, now: float) -> None:
        self.now = now

    def run(self, work: Coroutine[Any, Any, None], seconds: float) -> None:
        """Runs a coroutine that waits for timers alone, for this time of the clock, then cancels it."""
        with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=self._make_loop) as runner:
            patch.setattr(time, "monotonic", lambda: self.now)
            runner.run(_end_after(work, seconds))

    def _make_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(_Selector(self))


class _Selector(selectors.SelectSelector):
    def __init__(self, clock: VirtualTime) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "the coroutine waits for something that is no timer"
        self._clock.now += timeout
        return super().select(0)


async def _end_after(work: Coroutine[Any, Any, None], seconds: float) -> None:
    running = asyncio.create_task(work)
    done, _ = await asyncio.wait({running}, timeout=seconds)
    if done:
        running.result()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
