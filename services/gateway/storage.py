"""The storage that code archives and checkpoints live in, by fsspec URL. Blocking: called in threads only.

It knows paths below its root and nothing of what the files mean. Files appear whole: on a local disk by renaming, on
an object store because that is how it works.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from gangline.domain.storage_url import check_same_protocol
from gangline.errors import Effect, GanglineError, conflict, invalid, unavailable
from gangline.rpc import CHUNK_BYTES


class Storage:
    """root: without the protocol. Raises GanglineError `storage.*` for a URL that nobody can open."""

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            self._files, root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as failure:
            raise invalid("storage.url", f"--storage-url {url} cannot be opened: {failure}") from failure
        self._root = str(root).rstrip("/")

    def probe(self) -> None:
        """Writes and removes a small file. Raises GanglineError `storage.not_writable`."""
        path = f"probe-{uuid.uuid4().hex}"
        try:
            self._make_parent(path)
            self._files.pipe_file(self._path(path), b"gangline")
            self._files.rm_file(self._path(path))
        except Exception as failure:
            raise unavailable(
                "storage.not_writable",
                f"cannot write to the storage {self.url}: {failure}; give this service write access, or change "
                "--storage-url",
            ) from failure

    def has(self, path: str) -> bool:
        return bool(self._files.exists(self._path(path)))

    def put(self, source: Path, path: str) -> None:
        """Stores a local file. On failure nothing is left under that path."""
        target = self._path(path)
        self._make_parent(path)
        partial = f"{target}.{uuid.uuid4().hex}.partial" if self._is_local else target
        try:
            with source.open("rb") as reading, self._files.open(partial, "wb") as writing:
                shutil.copyfileobj(reading, writing, CHUNK_BYTES)
            if self._is_local:
                _sync(Path(partial))
                Path(partial).replace(target)
        except Exception as failure:
            if self._files.exists(partial):
                self._files.rm_file(partial)
            text = f"cannot write {self.url}/{path}: {failure}"
            raise unavailable("storage.not_written", text, Effect.NONE) from failure

    def chunks(self, path: str) -> Iterator[bytes]:
        """Raises FileNotFoundError before the first chunk."""
        with self._files.open(self._path(path), "rb") as reading:
            while chunk := reading.read(CHUNK_BYTES):
                yield chunk

    def locate(self, url: str) -> str:
        """The path below the root of what this URL names. Raises GanglineError `storage.elsewhere`, `storage.chain` or
        `storage.protocol`.

        Trials name the folders of their checkpoints, and the gateway may read more than their users may: what lies
        outside of the storage is not handed out, through links neither. A URL of another protocol is refused before
        fsspec sees it, because some file systems connect to a server as soon as they are made.
        """
        check_same_protocol(url, self.url)
        try:
            files, path = fsspec.core.url_to_fs(url)
            root, found = self._root, posixpath.normpath(str(path))
            if self._is_local:
                root, found = str(Path(root).resolve()), str(Path(found).resolve())
        except (ValueError, ImportError, OSError, RuntimeError):
            # RuntimeError: a loop of links.
            raise _elsewhere(url, self.url) from None
        if type(files) is not type(self._files) or not found.startswith(root + "/"):
            raise _elsewhere(url, self.url)
        return found.removeprefix(root + "/")

    @property
    def renames(self) -> bool:
        """Whether a whole folder gets another name at once."""
        return self._is_local

    def names(self, path: str) -> list[str]:
        """Of what lies in a folder; none where there is no folder."""
        place = self._path(path)
        self._files.invalidate_cache(place)
        try:
            found = self._files.ls(place, detail=False)
        except FileNotFoundError:
            return []
        return [posixpath.basename(str(name).rstrip("/")) for name in found]

    def mark(self, path: str) -> None:
        """An empty file."""
        self._make_parent(path)
        self._files.pipe_file(self._path(path), b"")

    def remove_file(self, path: str) -> None:
        """Removing what is not there changes nothing."""
        with suppress(FileNotFoundError):
            self._files.rm_file(self._path(path))

    def remove_folder(self, path: str, aside: str = "", first: str = "") -> None:
        """Removes a folder with all in it, also one that others remove at the same time, or have removed.

        aside: its name meanwhile where storage renames, so that a reader finds all of it or nothing; what an earlier
        try has left there is removed as well. first: elsewhere, the file without which the rest counts for nothing.
        """
        place = self._path(path)
        if self._is_local and aside:
            gone = Path(self._path(aside))
            _remove_tree(gone)
            with suppress(FileNotFoundError):
                Path(place).rename(gone)
            _remove_tree(gone)
            return
        if first:
            self.remove_file(f"{path}/{first}")
        self._files.invalidate_cache(place)
        with suppress(FileNotFoundError):
            self._files.rm(place, recursive=True)

    @property
    def _is_local(self) -> bool:
        return isinstance(self._files, LocalFileSystem)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _make_parent(self, path: str) -> None:
        self._files.makedirs(posixpath.dirname(self._path(path)), exist_ok=True)


def _remove_tree(path: Path) -> None:
    """Others may remove the same at the same time."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
        return
    shutil.rmtree(path, onerror=_pass_over_what_is_gone)


def _pass_over_what_is_gone(_: object, __: str, failure: tuple[type[BaseException], BaseException, object]) -> None:
    if not isinstance(failure[1], FileNotFoundError):
        raise failure[1]


def _sync(path: Path) -> None:
    """What the caller acknowledges after this survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _elsewhere(url: str, storage_url: str) -> GanglineError:
    return conflict("storage.elsewhere", f"{url} is not in this cluster's storage {storage_url}; read it from there")
