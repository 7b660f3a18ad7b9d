"""PURE: how the client reports the progress of work that may take long."""

from __future__ import annotations

from collections.abc import Callable

OnProgress = Callable[[str, int, int], None]
"""Called with the name of the work, the bytes that are done, and all bytes; 0 where these are not known. Calls may come
from another thread, and the last one of a work has all bytes done."""


def ignore_progress(work: str, num_bytes: int, total_bytes: int) -> None:
    """Reports nothing."""
