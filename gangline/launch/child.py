"""Prepares a freshly forked process, and ends it.

Owns the small system calls: dying with the parent, taking over pipes as standard output, and leaving without the
parent's frames. Owns also an import path that puts the user's code first. Standard library only. Called by the nursery
and the fork server in their children.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import io
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NoReturn

# Options of prctl(2), from linux/prctl.h.
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
# A bit in the flags of /proc/<pid>/stat, set once the process is exiting.
_PF_EXITING = 0x4
_OOM_SCORE = Path("/proc/self/oom_score_adj")
# Signals that Python, or a shell in the background, ignores or handles. A program expects them at their defaults.
DEFAULT_SIGNALS = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGCHLD,
    signal.SIGPIPE,
    signal.SIGXFSZ,
)
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process when the parent thread ends. Ends at once when the parent has already ended."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the prctl, which then sends no signal.
    if os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of the processes that its children leave behind, so that it can end those too."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_name(name: str) -> None:
    """Sets the name that ps and top show, up to 15 characters."""
    _libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)


def name() -> str:
    """Returns the name that ps and top show."""
    return Path("/proc/self/comm").read_text().rstrip("\n")


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def reset_signals() -> None:
    """Undoes the signal settings of the parent, so that the user's code starts as under a plain python3."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def take_normal_priority() -> None:
    """Gives up the scheduling priority and the OOM protection that an agent may run with. The agent's heartbeats need
    them, and training must not compete with the heartbeats."""
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    with suppress(OSError, ValueError):
        if int(_OOM_SCORE.read_text()) < 0:
            _OOM_SCORE.write_text("0")


def close_standard_input() -> None:
    """Puts /dev/null in place of standard input."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


class _Output(io.FileIO):
    """The raw standard output or error of a process whose forks replace the file behind it.

    A stream remembers that it can seek in the file on which it was opened, and fails on the pipe that follows. This one
    reports from the start that it cannot seek.
    """

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise io.UnsupportedOperation("tell")


def prepare_output() -> None:
    """Makes sys.stdout and sys.stderr outlive a change of the files behind them. A warm process calls it before it
    imports any module that may keep one of them."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        getattr(sys, name).flush()
        raw = _Output(number, "w", closefd=False)
        stream = io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", "backslashreplace", line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def take_output(stdout_fd: int, stderr_fd: int) -> None:
    """Makes these pipes standard output and error, and closes the given numbers. The streams stay the same: utf-8,
    flushed at each line's end. A user follows the log of a training live, and an odd character must not end the
    training."""
    for source, number in ((stdout_fd, 1), (stderr_fd, 2)):
        os.dup2(source, number)
        os.close(source)


def set_environment(environment: dict[str, str], directory: str) -> None:
    """Replaces the environment and changes into directory. Values that are right already are left alone. In a fork of a
    process with the same environment these are most of them."""
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    os.chdir(directory)


def put_code_first(code_directory: str) -> None:
    """Makes imports look into the user's folder before anything else, then along PYTHONPATH.

    The programs of Gangline install as a top-level package `services`. A user's plain folder of that name would lose
    against it. Python prefers a package with an __init__.py to a folder without one anywhere on the path. So that one
    name is looked up in the user's folder alone first.
    """
    own = [code_directory, *(entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry)]
    sys.path[:] = own + [entry for entry in sys.path if entry not in own]
    sys.meta_path.insert(0, _UserServices(code_directory))
    importlib.invalidate_caches()


class _UserServices:
    """Finds the one top-level name that Gangline and users may both have."""

    def __init__(self, code_directory: str) -> None:
        self._path = [code_directory]

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, self._path) if name == "services" else None


def call(target: str, *arguments: Any) -> int:
    """Imports and calls "pkg.mod:function"; a result of None counts as 0."""
    module, _, function = target.partition(":")
    return int(getattr(importlib.import_module(module), function)(*arguments) or 0)


def become(program: Sequence[str]) -> NoReturn:
    """Replaces this process with another program, with the signals that a shell would start it with."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        # execvp would try every folder of PATH, and report the refusal of another one.
        path = shutil.which(program[0]) or program[0]
        os.execvp(path, list(program))  # noqa: S606  a list, and the user's own command
    except OSError as error:
        sys.stderr.write(f"error: entrypoint {program[0]!r} cannot be run: {error.strerror}\n")
        leave(127)


def leave(status: int) -> NoReturn:
    """Ends a forked process at once, without the exit handlers that it inherited from its parent."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status & 0xFF)


def leave_like_a_program(status: int) -> NoReturn:
    """Ends a process in which a user's program ran: its threads and exit handlers first, as python3 itself does.

    python3 takes all modules apart afterwards. That step is left out, because it is slow with torch, and gloo has been
    seen to hang in it. The two underscored functions are those that multiprocessing calls in its forks, because there
    are no public ones.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # see above
    atexit._run_exitfuncs()
    leave(status)


def is_exiting(pid: int) -> bool:
    """Returns whether a process is exiting or dead, by the kernel's own flag."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return True
    return bool(int(fields[6]) & _PF_EXITING)


def kill_descendants(pid: int, spared: Sequence[int] = ()) -> int:
    """Sends SIGKILL to every process below pid. Returns how many there were."""
    victims = [child for child in descendants(pid) if child not in spared]
    for victim in victims:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    return len(victims)


def bury_descendants(deadline_seconds: float) -> None:
    """Kills and reaps all processes below this one until none is left. It repeats, because a killed process may have
    forked just before.

    Processes that the kernel does not end in time (a hung GPU, a dead network disk) are left.
    """
    deadline = time.monotonic() + deadline_seconds
    while kill_descendants(os.getpid()) and (left := deadline - time.monotonic()) > 0:
        # There is at least one child: a killed process remains until this process, its only reaper, reaps it.
        _wait_for_end(_children(os.getpid())[0], left)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _wait_for_end(child: int, seconds: float) -> None:
    pidfd = os.pidfd_open(child)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(seconds * 1000)
    finally:
        os.close(pidfd)


def descendants(pid: int) -> list[int]:
    """Returns all processes below pid, children before grandchildren."""
    descendant_pids = _children(pid)
    for child in descendant_pids:
        descendant_pids.extend(_children(child))
    return descendant_pids


def find_inner(pid: int, inner_pid: int) -> int:
    """Returns the process at or below `pid` that has the number `inner_pid` in its own pid namespace, that of a
    container; 0 if there is none."""
    for candidate in (pid, *descendants(pid)):
        with suppress(OSError, ValueError):
            lines = Path(f"/proc/{candidate}/status").read_text().splitlines()
            if any(line.startswith("NSpid:") and int(line.split()[-1]) == inner_pid for line in lines):
                return candidate
    return 0


def _children(pid: int) -> list[int]:
    children = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                children += [int(child) for child in (task / "children").read_text().split()]
    return children
