"""Small files that are written whole or not at all, and renames that survive a power cut. It does not know the
contents."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


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
