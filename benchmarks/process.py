"""Ends processes that a benchmark started, and measures what a process has used. Owns the command that starts ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from gangline.local.identity import identify, stop

# Time for an orderly end before SIGKILL.
STOP_SECONDS = 10.0


def torchrun(ranks: int, python: str | Path = sys.executable) -> list[str]:
    """Returns the command that starts so many ranks on this machine. A program with its arguments follows."""
    return [str(python), "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--standalone"]


def processor_seconds(process: psutil.Process) -> float:
    """Returns the processor time that the process has used so far, in the kernel too, without its children."""
    return sum(process.cpu_times()[:2])


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Asks the process to end, waits, then kills it; returns once it is reaped. Does nothing to one that has ended."""
    running = identify(process.pid)
    if running is not None:
        stop([running], STOP_SECONDS)
    process.wait()
