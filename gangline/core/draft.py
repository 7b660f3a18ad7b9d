"""A checkpoint that ranks are writing: its files stream into the place where storage waits for the commit.

Owns the descriptions of what this rank has written. Who decides about the checkpoint's id, who commits and when is the
caller's business. Used by gangline.pytorch.checkpoint; folders that exist already go through CheckpointContext.upload.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gangline.core.manifest import StoredFile
from gangline.core.storage import CheckpointStore, list_files
from gangline.core.stream import DigestStream

_CHUNK_BYTES = 1 << 20


class CheckpointDraft:
    """files: what this rank has written, by path. on_write: called after each write to storage."""

    def __init__(self, store: CheckpointStore, storage_id: str, on_write: Callable[[], None] = lambda: None) -> None:
        self.storage_id = storage_id
        self.files: dict[str, StoredFile] = {}
        self._store = store
        self._on_write = on_write

    @contextmanager
    def open(self, path: str) -> Iterator[DigestStream]:
        """A new file, complete at the end of the block. Another rank must not write the same path."""
        with self._store.open_file(self.storage_id, path) as stream:
            stream.on_write = self._on_write
            yield stream
        self.files[path] = StoredFile(stream.num_bytes, stream.sha256)

    def write(self, path: str, content: bytes) -> None:
        with self.open(path) as stream:
            stream.write(content)

    def copy_folder(self, folder: str | Path) -> None:
        """All files of a folder, under their paths inside it."""
        for path in list_files(Path(folder)):
            with Path(folder, path).open("rb") as source, self.open(path) as stream:
                shutil.copyfileobj(source, stream, _CHUNK_BYTES)

    def discard(self) -> None:
        """Removes what all ranks have written so far. One rank calls it; committed checkpoints are not touched."""
        self._store.discard(self.storage_id)
