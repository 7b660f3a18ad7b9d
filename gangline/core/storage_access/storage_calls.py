"""Keeps the calls to storage that are under way in this process, so that a call that hangs is noticed.

storage.py marks its calls and their progress; storage_wait.py looks at them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StorageCalls:
    """The calls to storage that are under way in this process, with the time of their last progress. Any thread may
    call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._moved_at: dict[int, float] = {}

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Marks the calls of the block, which one thread makes. It may be nested."""
        thread = threading.get_ident()
        with self._lock:
            is_outer = thread not in self._moved_at
            self._moved_at[thread] = self._clock()
        try:
            yield
        finally:
            with self._lock:
                if is_outer:
                    del self._moved_at[thread]
                else:
                    self._moved_at[thread] = self._clock()

    def move(self) -> None:
        """Notes progress of the call that this thread makes."""
        thread = threading.get_ident()
        if thread in self._moved_at:
            self._moved_at[thread] = self._clock()

    def silent_seconds(self) -> float:
        """Returns for how long the slowest call has made no progress; 0 without a call."""
        with self._lock:
            oldest = min(self._moved_at.values(), default=None)
        return 0.0 if oldest is None else self._clock() - oldest
