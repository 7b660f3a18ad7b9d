"""The files of a checkpoint that a user imports, until they are complete.

Owns their place until then and its removal. Where the storage renames, the files arrive in a folder `.import-...`,
which is renamed when it is whole; one that a dead gateway left behind is removed an hour after its last change.
Elsewhere they arrive in the checkpoint's own folder, which is no checkpoint before its metadata.json; the next import
of the same content writes over what is left there. It blocks, so it is called in threads only.
"""

from __future__ import annotations

import errno
import hashlib
import threading
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import IO

import structlog

from gangline.domain.experiment import METADATA_FILE
from gangline.domain.storage.checkpoint_import import ImportedFile
from gangline.errors import Effect, GanglineError, conflict, invalid, unavailable
from services.gateway.storage.storage import Storage

FOLDER = "checkpoints"
PREFIX = ".import-"
# An import whose folder has not changed for so long has no gateway any more.
STALE_SECONDS = 3600.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

log = structlog.get_logger(__name__)


class ImportFolder:
    """Receives the files of one import, in the order in which they were announced. `close` removes everything again
    unless `seal` was called.

    Each method runs in a thread. A cancelled caller may close the folder while a write runs; the lock orders the two.
    """

    def __init__(self, storage: Storage, checkpoint_id: str, files: Sequence[ImportedFile]) -> None:
        self._storage = storage
        self._target = f"{FOLDER}/{checkpoint_id}"
        self._place = f"{FOLDER}/{PREFIX}{uuid.uuid4().hex}-{checkpoint_id}" if storage.renames else self._target
        self._paths = [file.path for file in files]
        self._waiting = list(reversed(files))
        self._file: ImportedFile | None = None
        self._opening: AbstractContextManager[IO[bytes]] | None = None
        self._stream: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self._num_bytes = 0
        self._is_sealed = self._is_closed = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Opens the first file. Raises GanglineError `storage.full`."""
        with self._lock:
            if not self._is_closed:
                self._close_full()

    def close(self) -> None:
        """Removes everything, unless it was sealed. Later calls do nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._opening is not None:
                with suppress(OSError, GanglineError):
                    self._opening.__exit__(None, None, None)
            if self._is_sealed:
                return
            if self._storage.renames or not self._storage.has(f"{self._target}/{METADATA_FILE}"):
                self._storage.remove_folder(self._place)

    def write(self, chunk: bytes) -> None:
        """Appends bytes to the present file, and goes on with the next one where it is full.

        Raises GanglineError `checkpoint.upload` for bytes that were not announced, and `storage.full`.
        """
        with self._lock:
            if not self._is_closed:
                self._write(memoryview(chunk))

    def _write(self, rest: memoryview) -> None:
        while rest:
            if self._file is None or self._stream is None:
                raise _broken("more bytes arrived than were announced")
            part = rest[: self._file.bytes - self._num_bytes]
            try:
                self._stream.write(part)
            except OSError as failure:
                raise self._unwritten(failure) from failure
            self._digest.update(part)
            self._num_bytes += len(part)
            rest = rest[len(part) :]
            self._close_full()

    def seal(self, document: bytes) -> None:
        """Makes a checkpoint of the files. An equal one that is there already stays. Raises GanglineError
        `checkpoint.upload` where files are missing, and `storage.full`."""
        with self._lock:
            if not self._is_closed:
                self._seal(document)

    def _seal(self, document: bytes) -> None:
        if self._file is not None:
            raise _broken(f"{self._file.path} and {len(self._waiting)} files more did not arrive whole")
        if self._storage.has(f"{self._target}/{METADATA_FILE}") and self._storage.is_ours(self._target):
            # Its id is a digest of its content, so it is the same. A trial can compute the id as well, so what belongs
            # to another account counts for nothing.
            return
        if not self._storage.renames:
            # Another import of the same content has the same place. When it breaks off late, it removes what is there.
            for path in self._paths:
                if not self._storage.has(f"{self._place}/{path}"):
                    raise _broken(f"{path} was removed by another import of the same content")
        try:
            with self._storage.writing(f"{self._place}/{METADATA_FILE}") as stream:
                stream.write(document)
            if self._storage.renames:
                self._storage.remove_folder(self._target)
                self._storage.rename_folder(self._place, self._target)
        except OSError as failure:
            raise self._unwritten(failure) from failure
        self._is_sealed = True

    def withdraw(self) -> None:
        """Removes the checkpoint that this import sealed, and of which no record was made. One that was there before
        stays: another import has made it."""
        if not self._is_sealed:
            return
        self._storage.remove_folder(self._target, f"{FOLDER}/{PREFIX}{uuid.uuid4().hex}", METADATA_FILE)

    def _close_full(self) -> None:
        """Closes the present file when it is full, and opens the next one that is not empty."""
        while self._file is None or self._num_bytes == self._file.bytes:
            if self._file is not None:
                self._finish(self._file)
            if not self._waiting:
                return
            self._file = self._waiting.pop()
            self._digest, self._num_bytes = hashlib.sha256(), 0
            self._opening = self._storage.writing(f"{self._place}/{self._file.path}")
            try:
                self._stream = self._opening.__enter__()
            except OSError as failure:
                self._opening = None
                raise self._unwritten(failure) from failure

    def _finish(self, file: ImportedFile) -> None:
        opening, self._opening, self._file, self._stream = self._opening, None, None, None
        assert opening is not None
        try:
            opening.__exit__(None, None, None)
        except OSError as failure:
            raise self._unwritten(failure) from failure
        if self._digest.hexdigest() != file.sha256:
            raise _broken(f"{file.path} arrived with another content than announced")

    def _unwritten(self, failure: OSError) -> GanglineError:
        if failure.errno in _FULL:
            return conflict(
                "storage.full",
                f"the storage {self._storage.url} is full, so nothing was imported; free some space and import again",
            )
        return unavailable("storage.not_written", f"cannot write to {self._storage.url}: {failure}", Effect.NONE)


def clear_stale_imports(storage: Storage, now: float) -> None:
    """Removes the folders of imports whose gateway is gone."""
    if not storage.renames:
        return
    for name in storage.names(FOLDER):
        if name.startswith(PREFIX) and now - storage.changed_at(f"{FOLDER}/{name}") > STALE_SECONDS:
            storage.remove_folder(f"{FOLDER}/{name}")
            log.info("an import that broke off is removed", folder=name)


def _broken(reason: str) -> GanglineError:
    return invalid("checkpoint.upload", f"the upload is damaged: {reason}; import the folder again")
