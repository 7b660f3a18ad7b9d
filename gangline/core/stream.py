"""Passes a file's content on to checkpoint storage, and counts and hashes it on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Protocol


class _Target(Protocol):
    def write(self, data: Any, /) -> Any: ...

    def flush(self) -> Any: ...


class DigestStream:
    """Implements as much of a writable binary file as torch and pickle need. It never seeks and does not close its
    target. on_write: called after each write."""

    def __init__(self, target: _Target) -> None:
        self.on_write: Callable[[], None] = lambda: None
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
        self._target.write(view)
        self._digest.update(view)
        self._num_bytes += view.nbytes
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
