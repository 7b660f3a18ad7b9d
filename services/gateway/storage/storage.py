"""The storage of code archives and checkpoints, by fsspec URL. It blocks, so it is called in threads only.

It knows paths below its root and nothing of the meaning of the files. A file appears whole or not at all: on a local
disk by renaming, on an object store by the store's own semantics.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import fsspec
from fsspec.implementations.local import LocalFileSystem

from gangline.domain.storage_url import check_same_protocol
from gangline.errors import Effect, GanglineError, conflict, invalid, unavailable
from gangline.protocol.rpc import CHUNK_BYTES


class Storage:
    """Accesses one storage. root: without the protocol. Raises GanglineError `storage.*` for a URL that cannot be
    opened."""

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
        """Stores a local file. A failure leaves nothing under that path."""
        target = self._path(path)
        self._make_parent(path)
        # Only a local disk shows a file that is being written; object stores show it when it is complete.
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

    @contextmanager
    def writing(self, path: str) -> Iterator[IO[bytes]]:
        """Opens a new file, which is on the disk when the block has ended. The caller removes it after an error."""
        self._make_parent(path)
        with self._files.open(self._path(path), "wb") as file:
            yield file
        if self._is_local:
            _sync(Path(self._path(path)))

    def rename_folder(self, path: str, target: str) -> None:
        """Renames a folder in one step, with its folders' names on the disk. Only where the storage renames."""
        folder, place = Path(self._path(path)), Path(self._path(target))
        for inner in (folder, *(each for each in folder.rglob("*") if each.is_dir())):
            _sync(inner)
        folder.rename(place)
        _sync(place.parent)

    def changed_at(self, path: str) -> float:
        """Returns the newest time of change in a folder, in seconds of the epoch; 0 where the storage tells none. Only
        where the storage renames."""
        folder = Path(self._path(path))
        times = [0.0]
        for each in (folder, *folder.rglob("*")):
            with suppress(OSError):
                times.append(each.lstat().st_mtime)
        return max(times)

    def chunks(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yields the chunks of a file from this byte on. Raises FileNotFoundError before the first chunk."""
        with self._files.open(self._path(path), "rb") as reading:
            reading.seek(offset)
            while chunk := reading.read(CHUNK_BYTES):
                yield chunk

    def locate(self, url: str) -> str:
        """Returns the path below the root for this URL. Raises GanglineError `storage.elsewhere`, `storage.chain` or
        `storage.protocol`.

        Trials choose the folders of their checkpoints, and the gateway may read more than their users may. So nothing
        outside of the storage is handed out, not through links either. A URL of another protocol is refused before
        fsspec sees it, because some file systems connect to a server as soon as they are created.
        """
        check_same_protocol(url, self.url)
        try:
            files, path = fsspec.core.url_to_fs(url)
            root, place = self._root, posixpath.normpath(str(path))
            if self._is_local:
                root, place = str(Path(root).resolve()), str(Path(place).resolve())
        except (ValueError, ImportError, OSError, RuntimeError):
            # RuntimeError: a loop of links.
            raise _elsewhere(url, self.url) from None
        if type(files) is not type(self._files) or not place.startswith(root + "/"):
            raise _elsewhere(url, self.url)
        return place.removeprefix(root + "/")

    @property
    def local_folder(self) -> Path | None:
        """Returns the folder of a storage that is one; None for an object store."""
        return Path(self._root) if self._is_local else None

    @property
    def renames(self) -> bool:
        """Returns whether the storage renames a whole folder in one step."""
        return self._is_local

    def names(self, path: str) -> list[str]:
        """Returns the names in a folder; none if the folder does not exist."""
        place = self._path(path)
        self._files.invalidate_cache(place)
        try:
            paths = self._files.ls(place, detail=False)
        except FileNotFoundError:
            return []
        return [posixpath.basename(str(name).rstrip("/")) for name in paths]

    def sizes(self, path: str) -> dict[str, int]:
        """Returns the size in bytes of each file below a folder, by its path below it; none if the folder does not
        exist. Links are left out, because trials write into the storage and a link may lead out of it."""
        place = self._path(path)
        if self._is_local:
            return dict(_local_sizes(Path(place), ""))
        self._files.invalidate_cache(place)
        try:
            entries = self._files.find(place, detail=True)
        except FileNotFoundError:
            return {}
        return {str(name).removeprefix(f"{place}/"): int(entry["size"]) for name, entry in entries.items()}

    def mark(self, path: str) -> None:
        """Creates an empty file."""
        self._make_parent(path)
        self._files.pipe_file(self._path(path), b"")

    def remove_file(self, path: str) -> None:
        """Removes a file. If there is none, nothing changes."""
        with suppress(FileNotFoundError):
            self._files.rm_file(self._path(path))

    def remove_folder(self, path: str, aside: str = "", first: str = "") -> None:
        """Removes a folder with all in it, also one that other gateways remove at the same time, or have removed.

        aside: the name that the folder gets first where the storage renames, so that a reader finds all of it or
        nothing; remains of an earlier try under that name are removed as well. first: on other storages, the file to
        remove first, because the rest counts for nothing without it.
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


def _local_sizes(folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _local_sizes(Path(entry.path), f"{prefix}{entry.name}/")
        elif entry.is_file(follow_symlinks=False):
            with suppress(FileNotFoundError):
                yield f"{prefix}{entry.name}", entry.stat(follow_symlinks=False).st_size


def code_path(code_sha256: str) -> str:
    """Returns the path of a code archive, which is stored under its content's sha256."""
    return f"code/{code_sha256}.tar.gz"


def code_marks(code_sha256: str) -> str:
    """Returns the path of the folder with the marks of a code archive."""
    return f"code_owners/{code_sha256}"


def code_mark(code_sha256: str, user: str) -> str:
    """Returns the path of the mark that this user has sent the archive."""
    return f"{code_marks(code_sha256)}/{hashlib.sha256(user.encode()).hexdigest()[:32]}"


def _remove_tree(path: Path) -> None:
    """Removes a tree. Other gateways may remove the same one at the same time."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
        return
    shutil.rmtree(path, onerror=_pass_over_what_is_gone)


def _pass_over_what_is_gone(_: object, __: str, failure: tuple[type[BaseException], BaseException, object]) -> None:
    if not isinstance(failure[1], FileNotFoundError):
        raise failure[1]


def _sync(path: Path) -> None:
    """Flushes a file to disk, so that what the caller acknowledges afterwards survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _elsewhere(url: str, storage_url: str) -> GanglineError:
    return conflict("storage.elsewhere", f"{url} is not in this cluster's storage {storage_url}; read it from there")
