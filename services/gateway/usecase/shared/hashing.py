"""The threads that hash passwords."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

# Passwords that are hashed at a time. Each takes 16 MiB and a processor for 0.2 s.
_MAX_HASHING = 2
_hashing = ThreadPoolExecutor(_MAX_HASHING, thread_name_prefix="hashing")

T = TypeVar("T")


async def hashed(work: Callable[..., T], *arguments: object) -> T:
    """Runs work that hashes a password. A caller that is cancelled while it waits leaves the queue."""
    return await asyncio.get_running_loop().run_in_executor(_hashing, work, *arguments)
