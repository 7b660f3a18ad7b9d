"""Reads the folder of a checkpoint that a user imports, and refuses what must not go into storage.

Owns the walk over the folder: plain files only, no link and no device, so that nothing outside of the folder is sent.
The rules for the content are in gangline.domain.storage.checkpoint_import. Called by `Client.import_checkpoint`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gangline.domain.experiment import METADATA_FILE
from gangline.domain.storage.checkpoint_import import (
    MOST_FILES,
    FolderPlan,
    ImportedFile,
    check_import,
    check_path,
    import_id,
    plan_folder,
)
from gangline.domain.storage.foreign_checkpoint import STATE_FILE
from gangline.errors import GanglineError, invalid, not_found
from gangline.protocol.rpc import CHUNK_BYTES
from gangline.v1 import gateway_pb2

_LEAST_SECONDS = 600.0
_LEAST_BYTES_PER_SECOND = 1 << 20


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """A folder that can be imported."""

    folder: Path
    name: str
    metadata_json: str
    files: tuple[ImportedFile, ...]
    checkpoint_id: str  # the id that its content gives it

    @property
    def num_bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def chunks(self) -> Iterator[bytes]:
        """Yields the content of the files, one after another. Raises GanglineError `checkpoint.changed` where a file
        has another size than it had."""
        for file in self.files:
            left = file.bytes
            with _open(self.folder / file.path) as stream:
                while chunk := stream.read(min(CHUNK_BYTES, left + 1)):
                    left -= len(chunk)
                    if left < 0:
                        break
                    yield chunk
            if left:
                raise invalid("checkpoint.changed", f"{file.path} changed while it was sent; import the folder again")


class ImportMessages:
    """Makes the messages of one import, afresh for each attempt. on_bytes: called with the bytes sent and all bytes.
    failure: the error of the last attempt to read a file, which the failed call does not show."""

    def __init__(self, files: CheckpointFiles, request_id: str, on_bytes: Callable[[int, int], None]) -> None:
        self._files = files
        self._request_id = request_id
        self._on_bytes = on_bytes
        self.failure: GanglineError | None = None

    @property
    def seconds(self) -> float:
        """Returns the time limit of one attempt: more than a slow network needs."""
        return _LEAST_SECONDS + self._files.num_bytes / _LEAST_BYTES_PER_SECOND

    def __call__(self) -> Iterator[gateway_pb2.ImportCheckpointRequest]:
        files = self._files
        described = [
            gateway_pb2.ImportedFile(path=file.path, bytes=file.bytes, sha256=file.sha256) for file in files.files
        ]
        self.failure = None
        yield gateway_pb2.ImportCheckpointRequest(
            request_id=self._request_id, name=files.name, metadata_json=files.metadata_json, files=described
        )
        num_sent = 0
        try:
            for chunk in files.chunks():
                yield gateway_pb2.ImportCheckpointRequest(chunk=chunk)
                num_sent += len(chunk)
                self._on_bytes(num_sent, files.num_bytes)
        except GanglineError as error:
            self.failure = error
            raise
        except OSError as error:
            self.failure = invalid("checkpoint.changed", f"a file cannot be read any more: {error}; import it again")
            raise


def read_checkpoint_folder(folder: Path, name: str = "") -> CheckpointFiles:
    """Describes a checkpoint's folder. name: under which it is listed; the folder's own by default.

    Raises GanglineError `checkpoint.no_folder`, `checkpoint.path`, `checkpoint.not_one`, `checkpoint.corrupt` and
    `checkpoint.import`.
    """
    if not folder.is_dir():
        raise not_found("checkpoint.no_folder", f"{folder} is no folder; give the folder of a checkpoint")
    root = folder.resolve()
    plan = plan_folder(lambda path: _read(root, path), _list_paths(root), STATE_FILE)
    files = tuple(_describe(root, path) for path in plan.paths)
    _compare(plan, files)
    if plan.has_state:
        _check_archive(root / STATE_FILE)
    metadata_json = json.dumps(plan.metadata, sort_keys=True)
    own_name = name or root.name
    check_import(own_name, metadata_json, list(files))
    return CheckpointFiles(root, own_name, metadata_json, files, import_id(metadata_json, list(files)))


def _list_paths(root: Path) -> list[str]:
    paths: list[str] = []
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        with os.scandir(root / prefix) as entries:
            for entry in entries:
                path = prefix + entry.name
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    waiting.append(f"{path}/")
                    continue
                if not stat.S_ISREG(mode):
                    what = "a link" if stat.S_ISLNK(mode) else "no plain file"
                    raise invalid(
                        "checkpoint.path", f"{path!r} in the folder is {what}; put the file itself there, or remove it"
                    )
                if path != METADATA_FILE:
                    check_path(path)
                paths.append(path)
                if len(paths) > MOST_FILES + 1:
                    raise invalid(
                        "checkpoint.import",
                        f"the folder has more than {MOST_FILES} files; pack its small files into an archive",
                    )
    return paths


def _read(root: Path, path: str) -> bytes | None:
    try:
        with _open(root / path) as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def _open(path: Path) -> BinaryIO:
    # A file that became a link since it was listed is not followed.
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _describe(root: Path, path: str) -> ImportedFile:
    digest, num_bytes = hashlib.sha256(), 0
    try:
        with _open(root / path) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
                num_bytes += len(chunk)
    except FileNotFoundError:
        raise invalid(
            "checkpoint.corrupt", f"the folder lacks {path}, which its manifest lists; fetch it again"
        ) from None
    return ImportedFile(path, num_bytes, digest.hexdigest())


def _compare(plan: FolderPlan, files: tuple[ImportedFile, ...]) -> None:
    for file in files:
        saved = plan.expected.get(file.path)
        if saved is not None and saved.sha256 != file.sha256:
            raise invalid(
                "checkpoint.corrupt",
                f"{file.path} differs from what was saved ({file.bytes} bytes, saved {saved.bytes}); fetch it again",
            )


def _check_archive(path: Path) -> None:
    """Reads torch's file, which is a zip archive with a checksum for each part. Raises GanglineError
    `checkpoint.corrupt`."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise _damaged(str(error)) from error
    if damaged is not None:
        raise _damaged(f"its part {damaged} differs from its checksum")


def _damaged(reason: str) -> GanglineError:
    return invalid("checkpoint.corrupt", f"{STATE_FILE} is damaged: {reason}; fetch the checkpoint again")
