"""Reads files that a user's processes may write or replace, and so may be anything by now.

Such a read is bounded, follows no link, and waits for nothing: a pipe, or a lease that its owner holds on the file,
would hold up the event loop of the service that reads. Nothing maps such a file into memory, because its owner can
shorten it, and a process that then touches the mapping is killed (SIGBUS).
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from gangline.folder_handle import FILE


def read_foreign(path: Path, max_bytes: int) -> bytes:
    """Returns the file's first bytes. Raises OSError, also for what is no regular file."""
    with os.fdopen(os.open(path, FILE), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        return file.read(max_bytes)
