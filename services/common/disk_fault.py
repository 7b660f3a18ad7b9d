"""Faults of the disk below a service's own folders: which errors mean one, and a check that finds one.

Agent and trial runner use it for the agent's state directory, which only they write. If a user's code finds another
disk full, that is the user's own failure.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from gangline.folder_handle import FILE

_ERRNOS = (errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT)
# As Python and torch's C++ print the errors. Only errors of opening a file carry a path.
_ERROR = re.compile(
    rf"\[Errno (?:{'|'.join(str(int(number)) for number in _ERRNOS)})\][^:']*(?:: '(?P<path>[^']*)')?"
    rf"|{'|'.join(re.escape(os.strerror(number)) for number in _ERRNOS)}"
)
# Large enough that the files of a start still find room, small enough to be written every few seconds.
_CHECK_BYTES = 64 << 10
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - files there have mode 0600, and their owner is checked


def is_disk_fault(error: BaseException | None) -> bool:
    """Returns whether the error, or an error that caused it, is a fault of the disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _ERRNOS:
            return True
        error = error.__cause__
    return False


def find_disk_fault(message: str, folder: Path) -> str:
    """Returns a clause about the state directory if an error message reports a fault of the disk below it; otherwise
    empty text. A message without an absolute path leads to a check of the folder, because an error of writing names no
    file. One with a path counts without a check, because the disk may have room again by now."""
    match = _ERROR.search(message)
    if match is None:
        return ""
    path = Path(match["path"] or "")
    if not path.is_absolute():
        return check_folder(folder)
    if not path.resolve().is_relative_to(folder.resolve()):
        return ""
    return check_folder(folder) or f"this is the disk of its state directory {folder}"


def check_folder(folder: Path) -> str:
    """Writes a file there and removes it. Returns why that does not work, with the remedy; empty when all is well."""
    path = folder / f".check.{os.getpid()}"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, os.urandom(_CHECK_BYTES))
            os.fsync(fd)
        finally:
            os.close(fd)
            path.unlink()
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        return f"its state directory {folder} takes no writes ({error.strerror or error}); {_remedy(error.errno)}"
    return ""


def spare_path(path: Path) -> Path:
    """Returns where a file is written if its own place takes no writes: in shared memory, which is no disk. The path is
    the same for all processes of a user on this machine."""
    name = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:32]
    folder = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    return folder / f"gangline-{os.geteuid()}-{name}"


def write_spare(path: Path, text: str) -> None:
    """Writes the spare file and replaces an older one. Raises OSError."""
    spare_path(path).unlink(missing_ok=True)
    fd = os.open(spare_path(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)


def has_spare(path: Path) -> bool:
    """Returns whether this user has a spare file. Other users may put anything under its name, so the owner is
    checked."""
    try:
        return _is_own(spare_path(path).lstat())
    except OSError:
        return False


def read_spare(path: Path) -> str | None:
    """Returns the spare file's text; None where this user has none. Raises OSError."""
    if not has_spare(path):
        return None
    # Between the check and the opening another user cannot replace it: the folder is sticky. A pipe would block without
    # O_NONBLOCK.
    fd = os.open(spare_path(path), FILE)
    with os.fdopen(fd) as file:
        return file.read() if _is_own(os.fstat(fd)) else None


def _is_own(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def remove_spare(path: Path) -> None:
    with suppress(OSError):
        spare_path(path).unlink(missing_ok=True)


def _write_all(fd: int, content: bytes) -> None:
    written = 0
    while written < len(content):
        written += os.write(fd, content[written:])


def _remedy(number: int | None) -> str:
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "free space there"
    return "mount it writable again" if number == errno.EROFS else "look at the disk"
