"""Runs a benchmark, ends the processes that it started, and measures what a process has used. Owns the command that
starts ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

from gangline.local.identity import Identity, find_marked, identify, stop

# Time for an orderly end before SIGKILL.
STOP_SECONDS = 10.0
# The environment variable of all processes that a benchmark has started, daemons included. Its value is the benchmark's
# own.
_MARK = "GANGLINE_BENCHMARK"
# A supervisor may replace a process that is ended before it.
_SWEEPS = 3
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def wait_until(condition: Callable[[], bool], problem: str, limit_seconds: float, pause_seconds: float) -> None:
    """Waits for a condition, which it looks at after each pause. Raises SystemExit with the problem at the limit."""
    deadline = time.monotonic() + limit_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{problem} after {limit_seconds:g} s")
        time.sleep(pause_seconds)


def run_benchmark(main: Callable[[], int | None]) -> NoReturn:
    """Calls a benchmark's main and exits with its status. SIGTERM and SIGINT end the benchmark through its contexts; a
    second one interrupts these. Whatever the benchmark has started ends before this process does."""
    mark = os.environ[_MARK] = f"{os.getpid()}.{time.time_ns()}"
    for number in _SIGNALS:
        signal.signal(number, _exit)
    try:
        sys.exit(main())
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        for _ in range(_SWEEPS):
            stop(find_marked(_MARK, mark), STOP_SECONDS)


def _exit(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def torchrun(ranks: int, python: str | Path = sys.executable) -> list[str]:
    """Returns the command that starts so many ranks on this machine. A program with its arguments follows."""
    return [str(python), "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--standalone"]


def processor_seconds(process: psutil.Process) -> float:
    """Returns the processor time that the process has used so far, in the kernel too, without its children."""
    return sum(process.cpu_times()[:2])


def end_process(*processes: subprocess.Popen[bytes]) -> None:
    """Asks the processes to end, waits, then kills them and the processes below them; returns once they are reaped.
    Does nothing to a process that has ended."""
    running = [found for process in processes if (found := identify(process.pid)) is not None]
    # A launcher that is killed leaves its ranks.
    below = [found for process in processes for found in _below(process.pid)]
    stop(running, STOP_SECONDS)
    stop(below, STOP_SECONDS)
    for process in processes:
        process.wait()


def _below(pid: int) -> list[Identity]:
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [found for child in children if (found := identify(child.pid)) is not None]
