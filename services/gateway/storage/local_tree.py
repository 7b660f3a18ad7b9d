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

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe without a writer would block; O_NONBLOCK changes nothing for regular files.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Found:
    """One entry below a folder. path: below it."""

    path: str
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
            descriptor = os.open(name, _FILE, dir_fd=folder)
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
    """Yields what is below a folder, in the order of names. What vanishes meanwhile, or is a link, is left out."""
    waiting = [tuple(_parts_of(path))]
    num_above = len(waiting[0])
    while waiting:
        parts = waiting.pop()
        folders = []
        for name, status in _list(root, parts):
            below = (*parts, name)
            if stat.S_ISDIR(status.st_mode):
                folders.append(below)
            is_file = stat.S_ISREG(status.st_mode)
            yield Found("/".join(below[num_above:]), is_file, status.st_size, status.st_mtime)
        waiting.extend(reversed(folders))


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


def _list(root: Path, parts: Sequence[str]) -> list[tuple[str, os.stat_result]]:
    found = []
    with suppress(OSError):
        folder = _open_folder(root, parts)
        try:
            for name in sorted(os.listdir(folder)):  # noqa: PTH208 - of a handle
                with suppress(FileNotFoundError):
                    found.append((name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
        finally:
            os.close(folder)
    return found


def _open_folder(root: Path, parts: Sequence[str]) -> int:
    """Returns a handle. Raises OSError. The root itself is the operator's, and may be a link."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        above = handle
        try:
            handle = os.open(part, _FOLDER, dir_fd=above)
        finally:
            os.close(above)
    return handle


def _parts_of(path: str) -> list[str]:
    """Raises GanglineError `storage.elsewhere` for a path that leads upwards."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise conflict("storage.elsewhere", f"{path!r} is no path in a storage")
    return parts


def _no_file(path: str, root: Path, why: str) -> GanglineError:
    return conflict("storage.elsewhere", f"{path} in the storage {root} is not handed out: {why}")
