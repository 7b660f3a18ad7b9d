"""Looks at files with the rights of another user, in the calling thread alone.

Root follows every link and enters every folder. Where a name was chosen by a user, the kernel shall decide by that
user's rights what it leads to. So the calling thread takes the user's ids for access to files, and gives up the
capabilities that override them. No other thread changes, no process starts, and the change costs a few system calls. A
block must not await, because other work of the event loop would run with these rights.
"""

from __future__ import annotations

import ctypes
import os
import platform
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.common.rank_rules import RankUser

# setgroups(2) by architecture. The function of the C library changes all threads.
_SETGROUPS = {"x86_64": 116, "aarch64": 159, "riscv64": 159, "ppc64le": 81, "s390x": 206}
# The version of capset(2)'s data with two words of 32 capabilities, from linux/capability.h.
_CAPABILITY_VERSION = 0x20080522
# CAP_SETGID and CAP_SETUID, which the way back needs.
_KEPT = 1 << 6 | 1 << 7
_NOT_AN_ID = 0xFFFFFFFF
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def rights_of(user: RankUser | None) -> Iterator[None]:
    """Gives this thread the user's access to files within the block; None changes nothing. Raises OSError if the kernel
    refuses."""
    if user is None:
        yield
        return
    groups, uid, gid, capabilities = os.getgroups(), os.geteuid(), os.getegid(), _load_capabilities()
    try:
        _set_groups(user.groups)
        _set_file_id(_libc.setfsgid, user.gid)
        _set_file_id(_libc.setfsuid, user.uid)
        _save_capabilities((capabilities[0] & _KEPT, *capabilities[1:3], 0, *capabilities[4:]))
        yield
    finally:
        _save_capabilities(capabilities)
        _set_file_id(_libc.setfsuid, uid)
        _set_file_id(_libc.setfsgid, gid)
        _set_groups(groups)
        # The kernel takes capabilities away and returns them with the ids; the former ones hold in any case.
        _save_capabilities(capabilities)


def resolve_as(user: RankUser | None, path: Path) -> Path | None:
    """Returns the path without links, as the user finds it; None if the user does not reach it."""
    with rights_of(user):
        try:
            return path.resolve(strict=True)
        except (OSError, RuntimeError):
            # RuntimeError: a loop of links.
            return None


def is_folder_of(user: RankUser | None, path: str | Path, base: Path = Path("/")) -> bool:
    """Whether the user may change into this folder. base: a folder of ours from which a relative path leads, which the
    user may reach in another way."""
    with _opened(base) as handle, rights_of(user):
        try:
            # The name of the folder in itself needs the right to enter it.
            os.close(os.open(f"{path}/.", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle))
        except OSError:
            return False
        return True


def is_file_of(user: RankUser | None, path: str | Path, base: Path = Path("/")) -> bool:
    """Whether the user finds a regular file there. base: as in `is_folder_of`."""
    with _opened(base) as handle, rights_of(user):
        try:
            return stat.S_ISREG(os.stat(path, dir_fd=handle).st_mode)
        except OSError:
            return False


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _set_groups(groups: tuple[int, ...] | list[int]) -> None:
    number = _SETGROUPS.get(platform.machine())
    if number is None:
        os.setgroups(groups)
        return
    array = (ctypes.c_uint32 * len(groups))(*groups)
    _check(_libc.syscall(ctypes.c_long(number), ctypes.c_size_t(len(groups)), array), "setgroups")


def _set_file_id(call: ctypes._NamedFuncPointer, number: int) -> None:
    """These calls report no error, only the former id."""
    call(ctypes.c_uint32(number))
    if call(ctypes.c_uint32(_NOT_AN_ID)) & _NOT_AN_ID != number:
        raise PermissionError(0, f"the kernel refuses the id {number} for files")


def _load_capabilities() -> tuple[int, ...]:
    """Returns effective, permitted and inheritable capabilities, of the lower 32 and then of the upper 32."""
    data = (ctypes.c_uint32 * 6)()
    _check(_libc.capget((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), data), "capget")
    return tuple(data)


def _save_capabilities(capabilities: tuple[int, ...]) -> None:
    data = (ctypes.c_uint32 * 6)(*capabilities)
    _check(_libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), data), "capset")


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
