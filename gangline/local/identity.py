"""Identifies one process by its pid and its start time, so that a pid that the kernel has reused is never signalled.

Owns inspecting, signalling and awaiting processes that need not be children of this one. Reads /proc; Linux only.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Identity:
    """A process."""

    pid: int
    start_ticks: int  # field 22 of /proc/<pid>/stat, clock ticks since the machine started

    def is_alive(self) -> bool:
        """Returns whether the process runs. A zombie counts as ended: it runs nothing and waits only for its parent."""
        state_and_start = _stat(self.pid)
        return state_and_start is not None and state_and_start[1] == self.start_ticks and state_and_start[0] not in "ZX"

    def send(self, signal_number: int) -> None:
        """Sends a signal. Does nothing when the process is gone."""
        with suppress(ProcessLookupError):
            # The pidfd is opened before the check, so that the signal goes to the process that was checked.
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.is_alive():
                    signal.pidfd_send_signal(descriptor, signal_number)
            finally:
                os.close(descriptor)


def identify(pid: int) -> Identity | None:
    """Returns the identity of a pid; None when there is no such process."""
    state_and_start = _stat(pid)
    return None if state_and_start is None else Identity(pid, state_and_start[1])


def find_marked(name: str, value: str) -> list[Identity]:
    """Returns every process of this user that was started with the environment variable name=value, except this
    process."""
    wanted = f"{name}={value}".encode()
    marked = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                marked.append(identify(int(entry.name)))
    return [process for process in marked if process is not None and process.is_alive()]


def find_openers(processes: Iterable[Identity], paths: Iterable[Path]) -> list[Identity]:
    """Returns the processes that have one of these files open."""
    wanted = {str(path) for path in paths}
    return [process for process in processes if wanted.intersection(_open_files(process.pid))]


def wait_gone(processes: Iterable[Identity], seconds: float) -> list[Identity]:
    """Waits until none of them runs. Returns those that still run after that many seconds."""
    deadline = time.monotonic() + seconds
    left = [process for process in processes if process.is_alive()]
    while left and (remaining := deadline - time.monotonic()) > 0:
        _wait_one(left[0], remaining)
        left = [process for process in left if process.is_alive()]
    return left


def stop(processes: Iterable[Identity], grace_seconds: float, signal_number: int = signal.SIGTERM) -> list[Identity]:
    """Signals, waits, then kills. Returns those that had to be killed."""
    processes = list(processes)
    for process in processes:
        process.send(signal_number)
    stubborn = wait_gone(processes, grace_seconds)
    for process in stubborn:
        process.send(signal.SIGKILL)
    wait_gone(stubborn, 10.0)
    return stubborn


def _wait_one(process: Identity, seconds: float) -> None:
    """Waits for the end of a process. A pidfd becomes readable when its process ends, also before it is reaped."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if process.is_alive():
            select.select([descriptor], [], [], seconds)
    finally:
        os.close(descriptor)


def _open_files(pid: int) -> set[str]:
    open_files = set()
    with suppress(OSError):
        for entry in (_PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                open_files.add(str(entry.readlink()))
    return open_files


def _stat(pid: int) -> tuple[str, int] | None:
    """Returns state and start time. The name in parentheses may contain spaces and parentheses itself."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])
