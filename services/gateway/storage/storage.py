"""The storage of code archives and checkpoints, by fsspec URL. It blocks, so it is called in threads only.

It knows paths below its root and nothing of the meaning of the files. A file appears whole or not at all: on a local
disk by renaming, on an object store by the store's own semantics.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import posixpath
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from gangline.domain.storage.storage_fault import MARKER_FILE, check_marker, storage_away
from gangline.domain.storage.storage_url import check_same_protocol
from gangline.errors import Effect, GanglineError, conflict, invalid, unavailable
from gangline.protocol.rpc import CHUNK_BYTES
from services.common.tree import remove_tree
from services.gateway.storage import local_tree

# Of files and folders that one request lists. It takes about a second.
MOST_ENTRIES = 100_000
# Of a path whose folders are compared with the root one by one.
MOST_FOLDERS = 64

# Folders of a storage that was used before gateways wrote marker files.
_USED_FOLDERS = ("code", "checkpoints")


class Storage:
    """Accesses one storage. root: without the protocol. Raises GanglineError `storage.*` for a URL that cannot be
    opened.

    marker: the content of the file by which the storage's folder is known. Once `settle_marker` has settled it, nothing
    is read, written or deleted in a folder without it, because such a folder is a mount point whose mount is lost, or
    in one with another.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.marker = ""
        try:
            self._files, root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as failure:
            raise invalid("storage.url", f"--storage-url {url} cannot be opened: {failure}") from failure
        self._root = str(root).rstrip("/")

    def settle_marker(self, is_used: bool, known: str = "") -> None:
        """Reads the marker file, and makes one in a new storage. is_used: the cluster has stored files in it before.
        known: the marker of the cluster's storage, where it is known; it counts from now on, also after an error.

        Raises GanglineError `storage.away` where the cluster's files are not in it, and `storage.not_writable`. Empty
        folders prove nothing: an agent may have made them in a mount point whose mount is lost.
        """
        if not self._is_local:
            return
        self.marker = known
        new = known or str(uuid.uuid4())
        try:
            if not self._marker_path.exists():
                if is_used and (known or not any(map(self._has_file, _USED_FOLDERS))):
                    raise storage_away(self.url)
                _make_marker(self._marker_path, new)
            # An operator may have made an empty one.
            self.marker = known or _read_marker(self._marker_path) or new
        except OSError as failure:
            raise _not_writable(self.url, failure) from failure
        self.check_present()

    def _has_file(self, path: str) -> bool:
        return any(each.is_file for each in local_tree.walk(Path(self._root), path))

    def check_present(self) -> None:
        """Raises GanglineError `storage.away` where the storage's folder has lost its marker file, or is another."""
        if self.marker:
            check_marker(self.url, _read_marker(self._marker_path), self.marker)

    def probe(self) -> None:
        """Writes and removes a small file. Raises GanglineError `storage.not_writable`."""
        path = f"probe-{uuid.uuid4().hex}"
        try:
            self._make_parent(path)
            self._files.pipe_file(self._path(path), b"gangline")
            self._files.rm_file(self._path(path))
        except Exception as failure:
            raise _not_writable(self.url, failure) from failure

    def has(self, path: str) -> bool:
        self.check_present()
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
        found = itertools.islice(local_tree.walk(Path(self._root), path), MOST_ENTRIES)
        times = [each.changed_at for each in found]
        with suppress(OSError):
            times.append(Path(self._path(path)).lstat().st_mtime)
        return max(times, default=0.0)

    def chunks(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yields the chunks of a file from this byte on. Raises FileNotFoundError before the first chunk, and on a
        local disk GanglineError `storage.elsewhere` for a link and whatever else is no file."""
        with self._open(path) as reading:
            reading.seek(offset)
            while chunk := reading.read(CHUNK_BYTES):
                yield chunk

    def locate(self, url: str) -> str:
        """Returns the path below the root for this URL. Raises GanglineError `storage.elsewhere`, `storage.chain` or
        `storage.protocol`.

        Trials choose the folders of their checkpoints, and the gateway may read more than their users may. So nothing
        outside of the storage is handed out. A path with `..` is refused, although it may lead back into the storage: a
        reader could take it for another folder. Links are refused when a file is opened. A URL of another protocol is
        refused before fsspec sees it, because some file systems connect to a server as soon as they are created.
        """
        check_same_protocol(url, self.url)
        try:
            files, path = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError, OSError):
            raise _elsewhere(url, self.url) from None
        place = str(path)
        is_upwards = {".", ".."} & {*url.split("/"), *place.split("/")}
        below = "" if is_upwards or type(files) is not type(self._files) else self._below_root(place)
        if not below:
            raise _elsewhere(url, self.url)
        return posixpath.normpath(below)

    def _below_root(self, place: str) -> str:
        """Returns the path below the root; empty for a place elsewhere. A scheduler may name the same folder by another
        path, with a link in it."""
        if place.startswith(f"{self._root}/"):
            return place.removeprefix(f"{self._root}/")
        if not self._is_local or place.count("/") > MOST_FOLDERS:
            return ""
        try:
            root = Path(self._root).resolve()
            # The outermost one, so that no link below the root is followed.
            heads = reversed(Path(place).parents)
            return next((place.removeprefix(f"{head}/") for head in heads if head.resolve() == root), "")
        except (OSError, RuntimeError):
            # RuntimeError: a loop of links.
            return ""

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
        self.check_present()
        place = self._path(path)
        self._files.invalidate_cache(place)
        try:
            paths = self._files.ls(place, detail=False)
        except FileNotFoundError:
            return []
        return [posixpath.basename(str(name).rstrip("/")) for name in paths]

    def sizes(self, path: str) -> dict[str, int]:
        """Returns the size in bytes of each file below a folder, by its path below it; none if the folder does not
        exist. Links are left out, because trials write into the storage and a link may lead out of it. Raises
        GanglineError `storage.too_many_files` for a folder of this machine with more than MOST_ENTRIES entries."""
        self.check_present()
        place = self._path(path)
        if self._is_local:
            found = list(itertools.islice(local_tree.walk(Path(self._root), path), MOST_ENTRIES + 1))
            if len(found) > MOST_ENTRIES:
                text = f"{path} in the storage has more than {MOST_ENTRIES:,} files; copy them from the storage itself"
                raise conflict("storage.too_many_files", text)
            return {each.path: each.num_bytes for each in found if each.is_file}
        self._files.invalidate_cache(place)
        try:
            entries = self._files.find(place, detail=True)
        except FileNotFoundError:
            return {}
        return {str(name).removeprefix(f"{place}/"): int(entry["size"]) for name, entry in entries.items()}

    def is_ours(self, path: str) -> bool:
        """Returns whether a gateway has made the folder, as far as the storage tells: one of a trial on a local disk
        belongs to another account."""
        return not self._is_local or local_tree.belongs_to_us(Path(self._root), path)

    def mark(self, path: str) -> None:
        """Creates an empty file."""
        self._make_parent(path)
        self._files.pipe_file(self._path(path), b"")

    def remove_file(self, path: str) -> None:
        """Removes a file. If there is none, nothing changes."""
        self.check_present()
        with suppress(FileNotFoundError):
            self._files.rm_file(self._path(path))

    def remove_folder(self, path: str, aside: str = "", first: str = "") -> None:
        """Removes a folder with all in it, also one that other gateways remove at the same time, or have removed.

        aside: the name that the folder gets first where the storage renames, so that a reader finds all of it or
        nothing; remains of an earlier try under that name are removed as well. first: on other storages, the file to
        remove first, because the rest counts for nothing without it.
        """
        self.check_present()
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

    @property
    def _marker_path(self) -> Path:
        return Path(self._root) / MARKER_FILE

    def _open(self, path: str) -> IO[bytes]:
        self.check_present()
        if self._is_local:
            return local_tree.open_file(Path(self._root), path)
        return cast(IO[bytes], self._files.open(self._path(path), "rb"))

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _make_parent(self, path: str) -> None:
        self.check_present()
        self._files.makedirs(posixpath.dirname(self._path(path)), exist_ok=True)


def _read_marker(path: Path) -> str | None:
    """Returns the content of the marker file; None where there is none."""
    try:
        return path.read_text(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _make_marker(path: Path, marker: str) -> None:
    """Writes a marker file, unless another gateway does at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        own.write_text(f"{marker}\n")
        # Ranks of all users read it.
        own.chmod(0o644)
        try:
            path.hardlink_to(own)
        except FileExistsError:
            pass
        except OSError:
            # Not every file system has hard links.
            own.replace(path)
    finally:
        # Also on a full disk, where every start of a gateway would leave another one.
        own.unlink(missing_ok=True)
    _sync(path.parent)


def _not_writable(url: str, failure: Exception) -> GanglineError:
    remedy = "give this service write access, or change --storage-url"
    if isinstance(failure, OSError) and failure.errno == errno.EROFS:
        remedy = "mount it writable, or, if the systemd unit protects it, name it in ReadWritePaths= of a drop-in"
    return unavailable("storage.not_writable", f"cannot write to the storage {url}: {failure}; {remedy}")


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
    """Removes a tree. Other gateways may remove the same one at the same time. Raises OSError if something stays."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
        return
    remove_tree(path)


def _sync(path: Path) -> None:
    """Flushes a file to disk, so that what the caller acknowledges afterwards survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _elsewhere(url: str, storage_url: str) -> GanglineError:
    return conflict("storage.elsewhere", f"{url} is not in this cluster's storage {storage_url}; read it from there")
