"""Reads a storage that is a folder of this machine, and follows no link below it.

Trials write into the storage, as users of their own, and the gateway may read more than they. A trial may put a link, a
pipe or a very deep folder there at any time, also between two looks. So each folder on the way is opened by the handle
of the one above it, and only regular files are read. It blocks.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gangline.errors import GanglineError, conflict
from gangline.folder_handle import FILE, FOLDER, open_below

# Folders in one another that a walk enters. Each costs it a handle.
MOST_LEVELS = 40


@dataclass(frozen=True, slots=True)
class Found:
    """One entry below a folder."""

    path: str  # path below the folder
    is_file: bool
    num_bytes: int
    changed_at: float


def open_file(root: Path, path: str) -> IO[bytes]:
    """Opens a regular file below the root. Raises FileNotFoundError, and GanglineError `storage.elsewhere` for a link,
    a pipe and whatever else is no file in a folder."""
    *parts, name = _parts_of(path)
    try:
        folder = _open_folder(root, parts)
        try:
            descriptor = os.open(name, FILE, dir_fd=folder)
        finally:
            os.close(folder)
    except FileNotFoundError:
        raise
    except OSError as failure:
        raise _no_file(path, root, failure.strerror or str(failure)) from failure
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_file(path, root, "it is no regular file")
    return os.fdopen(descriptor, "rb")


def walk(root: Path, path: str) -> Iterator[Found]:
    """Yields what is below a folder, but for what vanishes meanwhile, is a link, or lies below MOST_LEVELS folders."""
    try:
        open_folders = [_Open(_open_folder(root, _parts_of(path)), "")]
    except OSError:
        return
    try:
        while open_folders:
            found = open_folders[-1].take()
            if found is None:
                open_folders.pop().close()
                continue
            name, status = found
            below = f"{open_folders[-1].prefix}{name}"
            if stat.S_ISDIR(status.st_mode) and len(open_folders) < MOST_LEVELS:
                with suppress(OSError):
                    handle = os.open(name, FOLDER, dir_fd=open_folders[-1].handle)
                    open_folders.append(_Open(handle, f"{below}/"))
            yield Found(below, stat.S_ISREG(status.st_mode), status.st_size, status.st_mtime)
    finally:
        for each in open_folders:
            each.close()


def belongs_to_us(root: Path, path: str) -> bool:
    """Whether this process has made the folder, and no trial."""
    try:
        folder = _open_folder(root, _parts_of(path))
    except OSError:
        return False
    try:
        return os.fstat(folder).st_uid == os.geteuid()
    finally:
        os.close(folder)


class _Open:
    """One folder on the way of a walk, with the names in it that are still to be visited. prefix: of paths in it."""

    def __init__(self, handle: int, prefix: str) -> None:
        self.handle = handle
        self.prefix = prefix
        self._names: list[str] = []
        with suppress(OSError):
            self._names = sorted(os.listdir(handle), reverse=True)

    def take(self) -> tuple[str, os.stat_result] | None:
        """Returns the next entry; None after the last one."""
        while self._names:
            name = self._names.pop()
            with suppress(OSError):
                return name, os.stat(name, dir_fd=self.handle, follow_symlinks=False)
        return None

    def close(self) -> None:
        os.close(self.handle)


def _open_folder(root: Path, parts: Sequence[str]) -> int:
    """Returns a handle. Raises OSError. The root itself is the operator's, and may be a link."""
    return open_below(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), parts)


def _parts_of(path: str) -> list[str]:
    """Raises GanglineError `storage.elsewhere` for a path that leads upwards."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise conflict("storage.elsewhere", f"{path!r} is no path in a storage")
    return parts


def _no_file(path: str, root: Path, why: str) -> GanglineError:
    return conflict("storage.elsewhere", f"{path} in the storage {root} is not handed out: {why}")
