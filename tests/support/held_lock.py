"""A data directory whose lock another process holds, as while the supervisor of a local cluster lives."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from gangline.local.layout import Layout
from gangline.local.lock import acquire_lock


@contextmanager
def held_lock(layout: Layout) -> Iterator[None]:
    """Holds the lock in a child, because the kernel does not report a process its own locks."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, b"1" if acquire_lock(layout.lock) else b"0")
        while True:
            signal.pause()
    try:
        assert os.read(reads, 1) == b"1"
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reads)
        os.close(writes)
