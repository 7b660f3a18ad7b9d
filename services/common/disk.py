"""Small files that are written whole or not at all, and renames that last. Knows nothing of what it writes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_atomic(path: Path, text: str, mode: int = 0o644, *, is_durable: bool = True) -> None:
    """The file holds either what it held before or all of `text`.

    is_durable: also after a power cut, for which it waits; without it, after a crash of this process only.
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
        # On a full disk it would only take up room.
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
    """Renames to the first free "<name>.<suffix>-<n>" beside it and returns where it is now; nothing is lost."""
    number = 1
    while (target := path.with_name(f"{path.name}.{suffix}-{number}")).exists():
        number += 1
    path.rename(target)
    sync_folder(path.parent)
    return target
