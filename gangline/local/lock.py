"""The lock on a data directory. The living supervisor holds it, and it is released however the supervisor ends.

It is a POSIX record lock, because the kernel reports the holder of one without an attempt to take it.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

# struct flock: l_type, l_whence, l_start, l_len, l_pid.
_FLOCK = struct.Struct("@hhqqi")


def acquire_lock(path: Path) -> bool:
    """Takes the lock until this process ends; returns False when another process has it. The file must not be opened
    again."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    # The descriptor stays open on purpose: closing any descriptor of the file would release a POSIX lock.
    return True


def is_locked(path: Path) -> bool:
    """Returns whether another process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return bool(_FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question))[0] != fcntl.F_UNLCK)
    finally:
        os.close(descriptor)
