"""Parses callers' texts outside of the event loop.

It has few threads of its own, so that texts which take long to parse neither stop the gateway's answers nor take the
storage's threads. A small text is parsed on the event loop, because that takes less time than a thread hand-over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gangline.config.bound import is_small

# Parsing holds Python's global lock most of the time, so more threads would not be faster.
NUM_THREADS = 2

T = TypeVar("T")

_threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="parsing")


async def read_text(work: Callable[[str], T], text: str) -> T:
    """Runs work that parses a text like `off_loop`, or at once for a small text."""
    return work(text) if is_small(text) else await off_loop(work, text)


async def off_loop(work: Callable[..., T], *arguments: object) -> T:
    """Returns what the work returns, or raises what it raises. The call may wait until a thread is free."""
    return await asyncio.get_running_loop().run_in_executor(_threads, work, *arguments)
