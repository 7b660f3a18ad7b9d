"""Secrets in files: tokens, passwords, private keys. Each read checks the mode of the file.

A file that every account of the machine can read is still used, because an upgrade must not stop a cluster; a warning
names it and the command that closes it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import structlog

_log = structlog.get_logger(__name__)


def read_secret(path: Path) -> bytes:
    """Returns the content of a file with a secret. Raises OSError."""
    with path.open("rb") as file:
        warn_if_open(path, os.fstat(file.fileno()).st_mode)
        return file.read()


def warn_if_open(path: Path, mode: int) -> None:
    """Logs a warning where other accounts can read the secret in a file. mode: as of stat."""
    mode = stat.S_IMODE(mode)
    if mode & stat.S_IROTH and _is_open_to_others(path):
        _log.warning(
            f"{path} has a secret and the mode {mode:04o}: every account of this machine can read it; "
            f"run: chmod o= {path}"
        )


def _is_open_to_others(path: Path) -> bool:
    """Returns whether other accounts may enter all folders above a file."""
    try:
        return all(folder.stat().st_mode & stat.S_IXOTH for folder in path.resolve().parents)
    except OSError:
        return True
