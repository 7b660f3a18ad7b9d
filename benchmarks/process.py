"""How a benchmark ends a process that it started."""

from __future__ import annotations

import subprocess

from gangline.local.identity import identify, stop

STOP_SECONDS = 10.0


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Asks it, waits, then kills it; returns once it is reaped. Does nothing to one that has ended."""
    running = identify(process.pid)
    if running is not None:
        stop([running], STOP_SECONDS)
    process.wait()
