"""Moves whole folders between this machine and checkpoint storage, for any fsspec URL.

Owns the place of a checkpoint (<storage URL>/checkpoints/<id>), the manifest that commits it, and the check of read
files against that manifest. A folder without its manifest is no checkpoint. A storage folder that has lost its marker
file is refused as away, and never made anew. On a directory the complete folder is synced to the disk and renamed into
place; elsewhere the manifest is written last. Trials of other owners may make folders in the same directory, so a
folder that has the name already is neither taken for this checkpoint nor written into. A gateway may delete the
uncommitted files of an attempt once the attempt has ended on record, even while its ranks still live. Their commit then
fails. Called by gangline.core.checkpoint and by gangline.pytorch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
import fsspec.callbacks

from gangline.core.storage_access.storage_calls import StorageCalls
from gangline.core.storage_access.stream import DigestStream, SyncedFile
from gangline.domain.experiment import METADATA_FILE
from gangline.domain.storage.foreign_checkpoint import ReadFile
from gangline.domain.storage.manifest import MANIFEST_KEY, StoredFile, files_of, read_document, write_document
from gangline.domain.storage.partial import Partial, Writer, partial_name, removed_name
from gangline.domain.storage.storage_fault import MARKER_FILE, check_marker
from gangline.errors import GanglineError, conflict, invalid, not_found

# Bounds the memory for the hashing of a file, 1 MiB.
_CHUNK_BYTES = 1 << 20


def checkpoint_url(storage_url: str, storage_id: str) -> str:
    return f"{storage_url.rstrip('/')}/checkpoints/{storage_id}"


def describe_files(directory: Path, paths: Iterable[str] | None = None) -> dict[str, StoredFile]:
    """Returns size and digest by path inside the folder, for the given paths or for all of its files."""
    chosen = sorted(paths) if paths is not None else list_files(directory)
    return {path: StoredFile((directory / path).stat().st_size, digest_of(directory / path)) for path in chosen}


def list_files(directory: Path) -> list[str]:
    """Returns all files below a folder, as sorted paths inside it. The manifest of an earlier upload is left out."""
    paths = (path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    return sorted(path for path in paths if path != METADATA_FILE)


def digest_of(path: Path, on_read: Callable[[], None] = lambda: None) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            on_read()
    return digest.hexdigest()


class CheckpointStore:
    """The checkpoints below one storage URL. It is stateless: ranks on other machines see what this one committed."""

    def __init__(self, storage_url: str, writer: Writer | None = None, marker: str = "") -> None:
        """Opens nothing yet. writer: the attempt whose name marks unfinished files; None off the cluster. marker: the
        content of the marker file in the storage's root; empty where there need be none."""
        self.url = storage_url
        self.calls = StorageCalls()
        self._writer = writer
        self._marker_text = marker
        # By id: the folders that this process has renamed, or is about to.
        self._renamed: dict[str, tuple[int, int] | None] = {}

    def upload_files(self, storage_id: str, directory: Path, paths: Iterable[str]) -> None:
        """Copies files to the place where `commit` finds them. Ranks may call it at the same time, each with files of
        its own."""
        with self.calls.under_way():
            filesystem, target = self._begin(storage_id)
            for path in paths:
                destination = f"{target}/{path}"
                filesystem.makedirs(destination.rpartition("/")[0], exist_ok=True)
                self._put(filesystem, directory / path, destination)
                if self._can_rename(filesystem):
                    sync(Path(destination))
                self.calls.move()

    @contextmanager
    def open_file(self, storage_id: str, path: str) -> Iterator[DigestStream]:
        """Opens a new file in the place where `commit` finds it, as upload_files."""
        with self.calls.under_way():
            filesystem, target = self._begin(storage_id)
            destination = f"{target}/{path}"
            filesystem.makedirs(destination.rpartition("/")[0], exist_ok=True)
            with filesystem.open(destination, "wb") as file:
                is_folder = self._can_rename(filesystem)
                yield DigestStream(SyncedFile(file, self.calls.move) if is_folder else file, self.calls.move)
            self.calls.move()
            if self._can_rename(filesystem):
                sync(Path(destination))

    def discard(self, storage_id: str) -> None:
        """Removes files that were never committed; there may be none."""
        with self.calls.under_way():
            self._discard(storage_id)

    def _discard(self, storage_id: str) -> None:
        filesystem, staging = self._open(self._staging_url(storage_id))
        # Without renaming the staging folder is the checkpoint's own folder, so a manifest in it means that it is
        # committed.
        is_committed = not self._can_rename(filesystem) and filesystem.exists(f"{staging}/{METADATA_FILE}")
        if filesystem.exists(staging) and not is_committed:
            filesystem.rm(staging, recursive=True)
        self._end(filesystem, storage_id)

    def commit(self, storage_id: str, metadata: Mapping[str, Any], files: Mapping[str, StoredFile]) -> str:
        """Makes uploaded files a checkpoint, all of them in one step. One rank calls it. Returns the checkpoint's URL.

        Raises GanglineError `checkpoint.swept` where a gateway has deleted the files meanwhile, and `checkpoint.taken`
        where someone else has made a folder of that name.
        """
        with self.calls.under_way():
            return self._commit(storage_id, metadata, files)

    def _commit(self, storage_id: str, metadata: Mapping[str, Any], files: Mapping[str, StoredFile]) -> str:
        self.check_present()
        filesystem, staging = self._open(self._staging_url(storage_id))
        if self._can_rename(filesystem) and self._is_committed(storage_id):
            # An earlier try renamed the folder, and storage failed after that.
            self._finish_commit(storage_id)
            return checkpoint_url(self.url, storage_id)
        self._check_whole(filesystem, staging, files)
        document = write_document(metadata, files)
        if not files:
            filesystem.makedirs(staging, exist_ok=True)
        try:
            self._seal(filesystem, staging, storage_id, document)
        except FileNotFoundError:
            # The folder must not be made anew, because it would lack the deleted files.
            raise _swept(staging) from None
        self._end(filesystem, storage_id)
        return checkpoint_url(self.url, storage_id)

    def _seal(self, filesystem: Any, staging: str, storage_id: str, document: bytes) -> None:
        filesystem.pipe_file(f"{staging}/{METADATA_FILE}", document)
        if self._can_rename(filesystem):
            # A checkpoint that the cluster's state names must survive a loss of power, so its files and folders are
            # synced first.
            folders = [path for path in Path(staging).rglob("*") if path.is_dir()]
            for place in (*folders, Path(staging) / METADATA_FILE, Path(staging)):
                sync(place)
                self.calls.move()
            self._rename(Path(staging), storage_id)
            self._sync_name(storage_id)
        elif self._writer is not None:
            self._check_unswept(filesystem, staging, storage_id)

    def _rename(self, staging: Path, storage_id: str) -> None:
        """Gives the complete folder its name, and never moves it into a folder that is there."""
        place = self._place(storage_id)
        self._renamed[storage_id] = _identity_of(staging)
        try:
            staging.rename(place)
        except OSError:
            # An NFS server may repeat a call whose answer was lost, and then not find the folder.
            if self._is_committed(storage_id):
                return
            if not os.path.lexists(place):
                raise
            raise _taken(place) from None

    def _is_committed(self, storage_id: str) -> bool:
        """Whether the folder is the one that this process has renamed. Its content proves nothing: whoever knows the id
        can make a folder with a manifest."""
        renamed = self._renamed.get(storage_id)
        return renamed is not None and _identity_of(self._place(storage_id)) == renamed

    def _finish_commit(self, storage_id: str) -> None:
        """Ends a commit that storage has interrupted after the rename, and removes what a later try has written."""
        filesystem, staging = self._open(self._staging_url(storage_id))
        if filesystem.exists(staging):
            filesystem.rm(staging, recursive=True)
        self._sync_name(storage_id)

    def _sync_name(self, storage_id: str) -> None:
        place = self._place(storage_id)
        try:
            sync(place.parent)
        except PermissionError:
            # A folder that may not be listed cannot be synced either. The new name is written with the renamed folder,
            # whose time of change is of the same transaction of the file system.
            sync(place)

    def _place(self, storage_id: str) -> Path:
        return Path(self._open(checkpoint_url(self.url, storage_id))[1])

    def check_present(self) -> None:
        """Raises GanglineError `storage.away` where the storage is a folder that has lost its marker file, as a mount
        point has whose mount is lost, or that is another storage. Its folders must not be made anew there."""
        if not self._marker_text:
            return
        root = Path(self._open(self.url)[1])
        try:
            text: str | None = (root / MARKER_FILE).read_text(errors="replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            text = None
        check_marker(self.url, text, self._marker_text)

    def download(self, storage_id: str, directory: Path, paths: Iterable[str] | None = None) -> None:
        """Copies a checkpoint's files, all or the given ones, and compares each with the manifest."""
        with self.calls.under_way():
            self._download(storage_id, directory, paths)

    def verify_in_place(self, storage_id: str, paths: Iterable[str] | None = None) -> None:
        """Compares a checkpoint's files with its manifest, where storage is a directory of this machine."""
        place = self.local_path(storage_id)
        assert place is not None
        with self.calls.under_way():
            verify(place, paths, self.calls.move)

    def _download(self, storage_id: str, directory: Path, paths: Iterable[str] | None) -> None:
        filesystem, source = self._open(checkpoint_url(self.url, storage_id))
        metadata = self.load_metadata(storage_id)
        files = files_of(metadata)
        for path in files if paths is None else paths:
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                filesystem.get_file(f"{source}/{path}", str(target), callback=_Progress(self.calls.move))
            except FileNotFoundError:
                raise _missing(path, checkpoint_url(self.url, storage_id)) from None
        (directory / METADATA_FILE).write_text(json.dumps(metadata, indent=2, sort_keys=True))
        verify(directory, paths, self.calls.move)

    def delete(self, storage_id: str) -> None:
        """Deletes a checkpoint's folder. Raises GanglineError `checkpoint.not_found`."""
        url = checkpoint_url(self.url, storage_id)
        filesystem, path = self._open(url)
        try:
            filesystem.rm(path, recursive=True)
        except FileNotFoundError:
            raise _absent(storage_id, url) from None

    def load_metadata(self, storage_id: str) -> dict[str, Any]:
        """Returns a checkpoint's metadata. Raises GanglineError `checkpoint.not_found` for a checkpoint that is absent
        or was never committed, and `corrupt`."""
        url = checkpoint_url(self.url, storage_id)
        filesystem, path = self._open(url)
        try:
            with self.calls.under_way():
                content = filesystem.cat_file(f"{path}/{METADATA_FILE}")
        except FileNotFoundError:
            raise _absent(storage_id, url) from None
        return read_document(content, f"{url}/{METADATA_FILE}")

    def holds_anything(self) -> bool:
        """Returns whether the folder of checkpoints has any entry. The folder of a storage that is not mounted is empty
        or absent. One that may not be listed is there. Raises OSError where the storage does not answer."""
        filesystem, path = self._open(f"{self.url.rstrip('/')}/checkpoints")
        # fsspec caches listings, and the storage may have come back since the last one.
        filesystem.invalidate_cache()
        try:
            return bool(filesystem.ls(path, detail=False))
        except FileNotFoundError:
            return False
        except PermissionError:
            return True

    def _put(self, filesystem: Any, source: Path, destination: str) -> None:
        if not self._can_rename(filesystem):
            filesystem.put_file(str(source), destination, callback=_Progress(self.calls.move))
            return
        with source.open("rb") as reading, Path(destination).open("wb") as writing:
            synced = SyncedFile(writing, self.calls.move)
            while chunk := reading.read(_CHUNK_BYTES):
                synced.write(chunk)
                self.calls.move()

    def local_path(self, storage_id: str) -> Path | None:
        """Returns the checkpoint's folder where storage is a directory of this machine, else None."""
        filesystem, path = self._open(checkpoint_url(self.url, storage_id))
        return Path(path) if self._can_rename(filesystem) else None

    def _staging_url(self, storage_id: str) -> str:
        filesystem, _ = self._open(self.url)
        name = partial_name(self._writer, storage_id) if self._can_rename(filesystem) else storage_id
        return checkpoint_url(self.url, name)

    def _begin(self, storage_id: str) -> tuple[Any, str]:
        """Returns the place where files are kept until the commit. Where the folder cannot carry its writer's name, it
        writes an empty marker file with that name."""
        self.check_present()
        filesystem, staging = self._open(self._staging_url(storage_id))
        if self._writer is not None and not self._can_rename(filesystem):
            filesystem.makedirs(staging.rpartition("/")[0], exist_ok=True)
            filesystem.pipe_file(self._marker(storage_id), b"")
        return filesystem, staging

    def _end(self, filesystem: Any, storage_id: str) -> None:
        if self._writer is not None and not self._can_rename(filesystem):
            with suppress(FileNotFoundError):
                filesystem.rm_file(self._marker(storage_id))

    def _marker(self, storage_id: str) -> str:
        return self._open(checkpoint_url(self.url, partial_name(self._writer, storage_id)))[1]

    def _check_whole(self, filesystem: Any, staging: str, files: Mapping[str, StoredFile]) -> None:
        for path, file in files.items():
            try:
                is_there = filesystem.info(f"{staging}/{path}")["size"] == file.bytes
            except FileNotFoundError:
                is_there = False
            if not is_there:
                raise _swept(f"{staging}/{path}")
            self.calls.move()

    def _check_unswept(self, filesystem: Any, staging: str, storage_id: str) -> None:
        """Raises where a gateway has begun to delete these files. The gateway writes its own mark before it looks for
        the manifest, and the commit writes the manifest before it looks for the mark. So at least one of the two sees
        the other."""
        assert self._writer is not None
        condemned = checkpoint_url(self.url, removed_name(Partial(self._writer, storage_id)))
        if filesystem.exists(self._open(condemned)[1]) or not filesystem.exists(self._marker(storage_id)):
            filesystem.rm_file(f"{staging}/{METADATA_FILE}")
            raise _swept(staging)

    @staticmethod
    def _can_rename(filesystem: Any) -> bool:
        # Only a local directory renames a folder in one step; object stores copy file by file.
        protocols = filesystem.protocol if isinstance(filesystem.protocol, tuple) else (filesystem.protocol,)
        return "file" in protocols

    @staticmethod
    def _open(url: str) -> tuple[Any, str]:
        filesystem, path = fsspec.core.url_to_fs(url)
        return filesystem, str(path)


class _Progress(fsspec.callbacks.Callback):  # type: ignore[misc]  # fsspec is untyped
    """Passes on that a copy moves."""

    def __init__(self, on_progress: Callable[[], None]) -> None:
        super().__init__()
        self._on_progress = on_progress

    def call(self, hook_name: str | None = None, **_: Any) -> None:
        self._on_progress()


def sync(path: Path) -> None:
    """Writes a file's content, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _identity_of(folder: Path) -> tuple[int, int] | None:
    """Returns what stays the same when a folder is renamed or its file system is mounted again. None if there is
    none."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_uid


def read_metadata(directory: Path) -> dict[str, Any]:
    """Returns the metadata of a checkpoint's folder. Raises GanglineError `checkpoint.not_found` where the folder is no
    complete checkpoint, and `corrupt`."""
    path = directory / METADATA_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise not_found(
            "checkpoint.not_found", f"{directory} holds no {METADATA_FILE}, so no complete checkpoint"
        ) from None
    return read_document(content, str(path))


def file_reader(directory: Path) -> ReadFile:
    """Returns a function that reads a file of a folder; None for a file that is not there."""

    def read(name: str) -> bytes | None:
        try:
            return (directory / name).read_bytes()
        except FileNotFoundError:
            return None

    return read


def has_manifest(directory: Path) -> bool:
    """Returns whether a folder has a metadata.json of Gangline, damaged or not."""
    content = file_reader(directory)(METADATA_FILE)
    return content is not None and f'"{MANIFEST_KEY}"'.encode() in content


def verify(
    directory: Path, paths: Iterable[str] | None = None, on_read: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Compares a folder's files, all or the given ones, with its manifest. Returns the metadata. on_read: called after
    each part of a file."""
    metadata = read_metadata(directory)
    files = files_of(metadata)
    for path in files if paths is None else paths:
        target = directory / path
        if path not in files or not target.is_file():
            raise _missing(path, str(directory))
        if digest_of(target, on_read) != files[path].sha256:
            raise invalid(
                "checkpoint.corrupt",
                f"{target} differs from what was saved ({target.stat().st_size} bytes, saved {files[path].bytes}); "
                "use another checkpoint",
            )
    return metadata


def _swept(place: str) -> GanglineError:
    return conflict(
        "checkpoint.swept",
        f"{place} is not there any more as it was written, so there is no checkpoint of it; what an attempt has not "
        "finished is cleared away once the attempt has ended on record",
    )


def _taken(place: Path) -> GanglineError:
    return conflict(
        "checkpoint.taken",
        f"{place} is there already, and this trial has not made it, so nothing was saved; save again, which takes a "
        "new id, and give no id away before its checkpoint is saved",
    )


def _absent(storage_id: str, url: str) -> GanglineError:
    return not_found("checkpoint.not_found", f"no checkpoint {storage_id} at {url}")


def _missing(path: str, where: str) -> GanglineError:
    return not_found("checkpoint.file_missing", f"{where} lacks {path}; use another checkpoint")
