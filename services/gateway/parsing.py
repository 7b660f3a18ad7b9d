"""Runs what reads a caller's text beside the event loop.

Its threads are few and its own, so that texts which take long to read neither stop the gateway's answers nor take the
threads that storage works in. A small text is read where it is: that takes less than handing it to a thread and back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gangline.config.bound import is_small

NUM_THREADS = 2

T = TypeVar("T")

_threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="parsing")


async def read_text(work: Callable[[str], T], text: str) -> T:
    """As `off_loop`, for work that reads a text."""
    return work(text) if is_small(text) else await off_loop(work, text)


async def off_loop(work: Callable[..., T], *arguments: object) -> T:
    """What the work returns or raises. Others' work may have to end first."""
    return await asyncio.get_running_loop().run_in_executor(_threads, work, *arguments)
