"""Passes a file's content on to checkpoint storage: counts and hashes it on the way, and syncs it in parts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any, Protocol

# The part of a large content that is written, and counted as progress, at a time: 16 MiB.
_PART_BYTES = 16 << 20
# The bytes that a folder's file may have in memory only. A slow server takes them in a time that counts as progress;
# one sync at the end of a file of several GB would look like a storage that hangs.
SYNC_BYTES = 64 << 20


class _Target(Protocol):
    def write(self, data: Any, /) -> Any: ...

    def flush(self) -> Any: ...


class _OpenFile(_Target, Protocol):
    def fileno(self) -> int: ...


class SyncedFile:
    """A file of this machine's file systems that is written to the disk part by part. on_progress: called after each
    part. The caller syncs the end of the file."""

    def __init__(self, file: _OpenFile, on_progress: Callable[[], None] = lambda: None) -> None:
        self._file = file
        self._on_progress = on_progress
        self._num_unsynced = 0

    def write(self, data: Any) -> None:
        self._file.write(data)
        self._num_unsynced += len(data)
        if self._num_unsynced >= SYNC_BYTES:
            self.flush()
            os.fsync(self._file.fileno())
            self._num_unsynced = 0
            self._on_progress()

    def flush(self) -> None:
        self._file.flush()


class DigestStream:
    """Implements as much of a writable binary file as torch and pickle need. It never seeks and does not close its
    target. on_write, on_progress: called after each part that is written; the former is the user's to set."""

    def __init__(self, target: _Target, on_progress: Callable[[], None] = lambda: None) -> None:
        self.on_write: Callable[[], None] = lambda: None
        self._on_progress = on_progress
        self._target = target
        self._digest = hashlib.sha256()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, view.nbytes, _PART_BYTES):
            part = view[start : start + _PART_BYTES]
            self._target.write(part)
            self._digest.update(part)
            self._num_bytes += part.nbytes
            self._on_progress()
            self.on_write()
        return view.nbytes

    def tell(self) -> int:
        return self._num_bytes

    def flush(self) -> None:
        self._target.flush()

    def close(self) -> None:
        self.flush()

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
