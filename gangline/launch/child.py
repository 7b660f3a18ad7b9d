"""What a freshly forked process does before anything else, and how it ends.

Owns the small system calls: dying with the parent, taking over pipes as standard output, an import path that puts the
user's code first, leaving without the parent's frames. Standard library only. Called by the nursery and the fork
server in their children.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import io
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
# In the flags of /proc/<pid>/stat.
_PF_EXITING = 0x4
_OOM_SCORE = Path("/proc/self/oom_score_adj")
# Which Python or a shell in the background ignores or handles, and a program expects at their defaults.
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
    """Has the kernel kill this process when the parent thread ends; ends at once when it already has."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of whatever its children leave behind, so that it can end that too."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_name(name: str) -> None:
    """What ps and top show, up to 15 characters."""
    _libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def reset_signals() -> None:
    """Undoes what the parent set for itself, so that the user's code starts as under a plain python3."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def take_normal_priority() -> None:
    """Gives up the scheduling priority and the protection against the OOM killer that an agent may run with: its
    heartbeats need them, and training must not compete with them."""
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
    """Standard output or error of a process whose forks put something else in its place.

    A stream remembers that it can seek in the file it was opened on, and fails on the pipe that follows; this one says
    from the start that it cannot.
    """

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise io.UnsupportedOperation("tell")


def prepare_output() -> None:
    """In a warm process, before it imports anything that may keep sys.stdout or sys.stderr: makes both outlive a change
    of what is behind them."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        getattr(sys, name).flush()
        raw = _Output(number, "w", closefd=False)
        stream = io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", "backslashreplace", line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def take_output(stdout_fd: int, stderr_fd: int) -> None:
    """Makes these pipes standard output and error, and closes the given numbers. The streams stay the same, utf-8 and
    flushed at each line's end: a person follows the log of a training, and an odd character must not end it."""
    for source, number in ((stdout_fd, 1), (stderr_fd, 2)):
        os.dup2(source, number)
        os.close(source)


def set_environment(environment: dict[str, str], directory: str) -> None:
    """Replaces the environment and changes into directory. What is right already is left alone: most of it, in a fork
    of a process that was started with the same."""
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    os.chdir(directory)


def put_code_first(code_directory: str) -> None:
    """Makes imports look into the user's folder before anything else, then along PYTHONPATH.

    The programs of Gangline install as a top-level package `services`. A plain folder of the user's with that name
    would lose against it, since Python prefers a package with an __init__.py to a folder without one anywhere on the
    path; so that one name is looked up in the user's folder alone first.
    """
    own = [code_directory, *(entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry)]
    sys.path[:] = own + [entry for entry in sys.path if entry not in own]
    sys.meta_path.insert(0, _UserServices(code_directory))
    importlib.invalidate_caches()


class _UserServices:
    """A finder for the one top-level name that Gangline and users may both have."""

    def __init__(self, code_directory: str) -> None:
        self._path = [code_directory]

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, self._path) if name == "services" else None


def call(target: str, *arguments: Any) -> int:
    """Imports and calls "pkg.mod:function"; None counts as 0."""
    module, _, function = target.partition(":")
    return int(getattr(importlib.import_module(module), function)(*arguments) or 0)


def become(program: Sequence[str]) -> NoReturn:
    """Puts another program in place of this process, with the signals that a shell would start it with."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(program[0], list(program))  # noqa: S606  a list, and the user's own command
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
    """Ends a process in which a user's program ran: its threads and exit handlers first, as python3 itself would.

    What python3 does after them, taking all modules apart, is left out: it is slow with torch, and gloo was seen to
    hang in it. The two underscored functions are what multiprocessing calls in its forks, for want of public ones.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # see above
    atexit._run_exitfuncs()
    leave(status)


def is_exiting(pid: int) -> bool:
    """Whether a process is on its way out or dead, by the kernel's own flag."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return True
    return bool(int(fields[6]) & _PF_EXITING)


def kill_descendants(pid: int, spared: Sequence[int] = ()) -> int:
    """SIGKILLs every process below pid; how many there were."""
    victims = [child for child in descendants(pid) if child not in spared]
    for victim in victims:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    return len(victims)


def bury_descendants(deadline_seconds: float) -> None:
    """Kills and reaps all below this process until nothing is left: what is killed may have forked just before.

    What the kernel does not take away in time (a hung GPU, a dead network disk) is left.
    """
    deadline = time.monotonic() + deadline_seconds
    while kill_descendants(os.getpid()) and (left := deadline - time.monotonic()) > 0:
        # Somebody is there: what was killed a moment ago, as only this process reaps its children.
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
    """All processes below pid, children before grandchildren."""
    found = _children(pid)
    for child in found:
        found.extend(_children(child))
    return found


def _children(pid: int) -> list[int]:
    children = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                children += [int(child) for child in (task / "children").read_text().split()]
    return children
