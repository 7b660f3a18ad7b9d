"""A checkpoint that ranks are writing. Its files stream into the place where storage keeps them until the commit.

Owns the descriptions of the files that this rank has written. The caller decides about the checkpoint's id, the rank
that commits, and the time. Used by gangline.pytorch.checkpoint; folders that exist already go through
CheckpointContext.upload.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gangline.core.storage_access.storage import CheckpointStore, list_files
from gangline.core.storage_access.stream import DigestStream
from gangline.domain.storage.manifest import StoredFile

# Bounds the memory for the copy of a file, 1 MiB.
_CHUNK_BYTES = 1 << 20


class CheckpointDraft:
    """Writes this rank's files of one checkpoint. files: those that this rank has written, by path. on_write: called
    after each write to storage."""

    def __init__(self, store: CheckpointStore, storage_id: str, on_write: Callable[[], None] = lambda: None) -> None:
        self.storage_id = storage_id
        self.files: dict[str, StoredFile] = {}
        self._store = store
        self._on_write = on_write

    @contextmanager
    def open(self, path: str) -> Iterator[DigestStream]:
        """Opens a new file, which is complete at the end of the block. Another rank must not write the same path."""
        with self._store.open_file(self.storage_id, path) as stream:
            stream.on_write = self._on_write
            yield stream
        self.files[path] = StoredFile(stream.num_bytes, stream.sha256)

    def write(self, path: str, content: bytes) -> None:
        with self.open(path) as stream:
            stream.write(content)

    def copy_folder(self, folder: str | Path) -> None:
        """Copies all files of a folder, under their paths inside it."""
        for path in list_files(Path(folder)):
            with Path(folder, path).open("rb") as source, self.open(path) as stream:
                shutil.copyfileobj(source, stream, _CHUNK_BYTES)

    def discard(self) -> None:
        """Removes the files that all ranks have written so far. One rank calls it. Committed checkpoints are not
        touched."""
        self._store.discard(self.storage_id)
