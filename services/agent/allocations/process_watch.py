"""Watches and signals processes that are not this agent's children.

Owns pidfds and /proc. They give the identity of a process (pid and start time), when and how it ended, and signals that
cannot reach a later process with the same pid. This module has no notion of allocations.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from services.agent.allocations.exit_judgement import ProcessEnd
from services.agent.allocations.journal_record import Process
from services.agent.machine.host import read_boot_id

# ioctl PIDFD_GET_INFO with PIDFD_INFO_EXIT, from linux/pidfd.h. Since Linux 6.15 it reports to any process how a
# process ended.
_PIDFD_GET_INFO = 0xC0000000 | 64 << 16 | 0xFF << 8 | 11
_PIDFD_INFO_EXIT = 1 << 3
_INFO = struct.Struct("=QQ11Ii")
# Positions in the fields that `_read_stat` returns.
_STATE_FIELD, _GROUP_FIELD, _START_FIELD = 0, 2, 19


def identify(pid: int) -> Process | None:
    """Returns the process with this pid; None if there is none, or only its zombie."""
    fields = _read_stat(pid)
    if fields is None or fields[_STATE_FIELD] in "ZX":
        return None
    return Process(pid, int(fields[_START_FIELD]), boot_id())


def is_alive(process: Process) -> bool:
    return identify(process.pid) == process


@contextmanager
def opened(process: Process) -> Iterator[int | None]:
    """Yields a pidfd of exactly this process; None if it has ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        # The pid may have passed to another process before the open. From here on the descriptor pins it.
        yield descriptor if is_alive(process) else None
    finally:
        os.close(descriptor)


async def wait_end(pidfd: int) -> None:
    """Returns when the process has ended, whether it is reaped or not."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)


async def read_end(pidfd: int, patience_seconds: float = 1.0) -> ProcessEnd:
    """Returns how an ended process ended; empty if neither its parent nor the kernel reports it to this process.

    The kernel reports it once the parent has reaped the process, which may take that parent a moment.
    """
    give_up_at, pause_seconds = time.monotonic() + patience_seconds, 0.001
    while True:
        status, can_come = _wait_status(pidfd)
        if status is not None:
            return _to_end(status)
        if not can_come or time.monotonic() > give_up_at:
            return ProcessEnd()
        await asyncio.sleep(pause_seconds)
        # The parent usually needs a millisecond, and the slots of the ended work are idle meanwhile.
        pause_seconds = min(2 * pause_seconds, 0.02)


def send_signal(pidfd: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


def kill_group(leader: Process) -> bool:
    """Sends SIGKILL to every process of the group that this process leads, even if the leader itself is gone.

    Returns True if any of them was alive. Another process that has the pid now is not killed. A pid stays taken while
    its group has members, so a process with the same pid and another start means that the group is empty.
    """
    target = _find_group(leader)
    return target is not None and _kill(target)


def has_group(leader: Process) -> bool:
    """Whether any process is alive that kill_group would kill."""
    return _find_group(leader) is not None


def load_leaders(pid_file: Path) -> list[Process]:
    """Returns the leaders of groups whose pids are in this file; none if the file is missing or broken.

    A leader must be older than the file: a younger process has only inherited the number.
    """
    try:
        pids = [int(word) for word in pid_file.read_text().split()]
        written_at = pid_file.stat().st_mtime
    except (OSError, ValueError):
        return []
    if written_at < _booted_at():
        return []
    leaders = [_find_leader(pid, written_at) for pid in pids if pid > 1]
    return [leader for leader in leaders if leader is not None]


def _find_leader(pid: int, written_at: float) -> Process | None:
    """Returns the leader with this pid, or None for a younger process. A leader that is gone may have left members of
    its group behind, so it is returned too."""
    fields = _read_stat(pid)
    if fields is None:
        return Process(pid, 0, boot_id())
    ticks = int(fields[_START_FIELD])
    # The start is computed from clock ticks and the time of the boot, so it gets a tolerance of one second.
    is_younger = _booted_at() + ticks / os.sysconf("SC_CLK_TCK") > written_at + 1
    return None if is_younger else Process(pid, ticks, boot_id())


def _find_group(leader: Process) -> int | None:
    """Returns the argument of os.kill that reaches the whole group; None if no process in it is alive."""
    fields = _read_stat(leader.pid)
    if fields is not None and (int(fields[_START_FIELD]) != leader.start_ticks or leader.boot_id != boot_id()):
        return None
    if fields is not None and int(fields[_GROUP_FIELD]) != leader.pid:
        # A process that has not made its own group yet, or has left it, is killed alone.
        return leader.pid if identify(leader.pid) == leader else None
    return -leader.pid if _has_living_members(leader.pid) else None


def find_openers(path: Path) -> tuple[Process, ...]:
    """Returns every process that has this file open, oldest first, without this one. Searches all of /proc."""
    own, wanted = os.getpid(), str(path.resolve())
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    openers = [identify(pid) for pid in pids if pid != own and _has_open(pid, wanted)]
    return tuple(sorted((each for each in openers if each is not None), key=lambda each: each.start_ticks))


@cache
def boot_id() -> str:
    """Returns the id of the machine's current boot. It cannot change while this process runs."""
    return read_boot_id()


def _booted_at() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _read_stat(pid: int) -> list[str] | None:
    """Returns the fields of /proc/<pid>/stat from the third on. The second is the program's name, which may contain any
    character."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()


def _has_open(pid: int, wanted: str) -> bool:
    try:
        return any(os.readlink(entry) == wanted for entry in Path(f"/proc/{pid}/fd").iterdir())  # noqa: PTH115 - links of /proc/<pid>/fd name no real relative path
    except OSError:
        return False


def _has_living_members(group: int) -> bool:
    """Whether the group has a process that is not a zombie. Zombies hold nothing, and without a parent that reaps them
    they stay."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    stats = (_read_stat(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return any(
        fields is not None and int(fields[_GROUP_FIELD]) == group and fields[_STATE_FIELD] not in "ZX"
        for fields in stats
    )


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _wait_status(pidfd: int) -> tuple[int | None, bool]:
    """Returns the wait status if it is known, and whether it may still arrive."""
    try:
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return _ask_kernel(pidfd)
    if result is None:
        return None, True
    if result.si_code == os.CLD_EXITED:
        return result.si_status << 8, True
    return result.si_status, True


def _ask_kernel(pidfd: int) -> tuple[int | None, bool]:
    buffer = bytearray(_INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer)
    except OSError as error:
        # ESRCH: the process is dead, and its end was forgotten. Other errors: a kernel without the call.
        return None, error.errno == errno.EAGAIN
    mask, *_, status = _INFO.unpack(buffer)
    return (status, True) if mask & _PIDFD_INFO_EXIT else (None, True)


def _to_end(status: int) -> ProcessEnd:
    if os.WIFSIGNALED(status):
        return ProcessEnd(signal=os.WTERMSIG(status))
    return ProcessEnd(exit_code=os.WEXITSTATUS(status))
