"""Small files that are written whole or not at all, and renames that survive a power cut. It does not know the
contents."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


# Errors with which Python's function gives up a folder that is too deep for it.
_TOO_DEEP = (errno.EMFILE, errno.ENFILE, errno.ENAMETOOLONG)


def write_atomic(path: Path, text: str, mode: int = 0o644, *, is_durable: bool = True) -> None:
    """Writes a file atomically: it contains either its former content or all of `text`.

    is_durable: holds after a power cut too, for which the call waits for the disk; without it, after a crash of this
    process only.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        try:
            os.fchmod(descriptor, mode)
            rest = memoryview(text.encode())
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if is_durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.replace(path)
    except OSError:
        # On a full disk the draft would only take up room.
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    if is_durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes renames and new names in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move_aside(path: Path, suffix: str) -> Path:
    """Renames to the first free "<name>.<suffix>-<n>" beside it and returns the new path; nothing is lost."""
    number = 1
    while (target := path.with_name(f"{path.name}.{suffix}-{number}")).exists():
        number += 1
    path.rename(target)
    sync_folder(path.parent)
    return target


def remove_tree(path: Path) -> None:
    """Removes a folder with all that it holds, and follows no link. Others may remove it at the same time. Raises
    OSError if something stays.

    A program may have made a folder so deep that Python's function cannot enter it. rm can, and stays in one file
    system.
    """
    try:
        shutil.rmtree(path, onerror=_pass_over_what_is_gone)
    except (OSError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno not in _TOO_DEEP:
            raise
        subprocess.run(
            ["rm", "-rf", "--one-file-system", "--", str(path)], stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if path.exists():
            raise


def _pass_over_what_is_gone(_: object, __: str, ___: object) -> None:
    failure = sys.exc_info()[1]
    if failure is not None and not isinstance(failure, FileNotFoundError):
        raise failure
