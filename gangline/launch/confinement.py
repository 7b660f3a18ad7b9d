"""Confines a freshly forked rank: its control group, its limits, and the user as which it runs.

Standard library only. The nursery calls `enter` in the rank's process, before the user's code or program runs. The
trial runner decides about the values; see services/trial_runner/ranks/confinement.py.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Options of prctl(2), from linux/prctl.h.
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
# The version of capset(2)'s data with two words of 32 capabilities, from linux/capability.h.
_CAPABILITY_VERSION = 0x20080522
# From linux/sched.h and linux/mount.h.
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_SLAVE = 1 << 12, 1 << 14, 1 << 19
_libc = ctypes.CDLL(None, use_errno=True)


def enter(confinement: Mapping[str, Any], *, becomes_program: bool) -> None:
    """Confines this process. Raises OSError; the process must then end, because it still has its parent's rights.

    confinement: `cgroup`, the path of a control group; `memory_bytes`, of each process; `processes`, of the user;
    `user`, a mapping with `uid`, `gid` and `groups`. Each of them may be absent. A user may also have `accounts`, the
    file that it sees as /etc/passwd, `umask`, and `no_new_privileges`, which no program that it runs can undo.
    becomes_program: another program takes this process's place next, and no Python code runs in it before.
    """
    if group := confinement.get("cgroup"):
        Path(group, "cgroup.procs").write_text("0")
    if limit := confinement.get("memory_bytes"):
        # The limit of the address space would count what CUDA only reserves. This one counts what a process can write.
        _limit(resource.RLIMIT_DATA, limit)
    if limit := confinement.get("processes"):
        _limit(resource.RLIMIT_NPROC, limit)
    if user := confinement.get("user"):
        if accounts := user.get("accounts"):
            _show_accounts(accounts)
        if "umask" in user:
            os.umask(user["umask"])
        if user.get("no_new_privileges"):
            _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
        os.setgroups(user["groups"])
        os.setresgid(user["gid"], user["gid"], user["gid"])
        os.setresuid(user["uid"], user["uid"], user["uid"])
        _drop_capabilities()
        if not becomes_program:
            # The kernel gives the files below /proc/self of a process that changed its user to root. A rank opens its
            # own. Its memory is that of the rank template, which holds no secret.
            _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


def _limit(kind: int, value: int) -> None:
    """Sets the soft and the hard limit, neither above the present hard limit."""
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _show_accounts(path: str) -> None:
    """Puts a file in the place of /etc/passwd, for this process and its children alone. Without the right to mount, as
    in most containers, the user has no name."""
    passwd = b"/etc/passwd"
    if _libc.unshare(_CLONE_NEWNS) != 0:
        return
    # No mount from here arrives on the machine. Those of the machine arrive here only where its `/` is shared, as
    # systemd makes it. Elsewhere, as in most containers, this process keeps the mounts that were there when it started.
    if _libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None) == 0:
        _libc.mount(os.fsencode(path), passwd, None, ctypes.c_ulong(_MS_BIND), None)


def _drop_capabilities() -> None:
    """Drops all capabilities. The kernel itself drops them only if the user was root before."""
    _check(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl")
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(header, nothing), "capset")


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
