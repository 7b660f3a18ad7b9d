"""Runs a command and makes sure that none of its processes outlives it.

It becomes the parent of every orphan below it (PR_SET_CHILD_SUBREAPER) and reaps ended ones at once. When the command
has ended, it kills the remaining processes, names them on stderr and exits with 1. Called by scripts/test and .ci/run.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
# Time for processes that end by themselves after the command: a spool's drainer exits 30 s after its agent.
SETTLE_SECONDS = 45.0


def main(command: list[str]) -> int:
    settle_seconds = float(os.environ.get("REAP_SETTLE_SECONDS", SETTLE_SECONDS))
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the command as well
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child.pid, number))
    status = _wait_for(child.pid)
    survivors = _end_survivors(settle_seconds)
    for line in survivors:
        print(f"run_and_reap: still running after the command ended, killed now: {line}", file=sys.stderr)
    return status or (1 if survivors else 0)


def _wait_for(child_pid: int) -> int:
    """Returns the command's exit code, or 128 plus the number of the signal that ended it. Reaps orphans that end
    meanwhile."""
    while True:
        pid, status = os.wait()
        if pid == child_pid:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code


def _end_survivors(settle_seconds: float) -> list[str]:
    """Kills all remaining processes, until none is left: a killed process leaves its children to this one."""
    deadline = time.monotonic() + settle_seconds
    killed: dict[int, str] = {}
    while True:
        children = _collect_ended()
        if not children:
            return list(killed.values())
        if time.monotonic() > deadline:
            for pid in children:
                killed.setdefault(pid, f"{pid} {_command_line(pid)}")
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _collect_ended() -> list[int]:
    """Reaps the ended children of this process and returns the pids of the living ones."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return []
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return "(gone)"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
