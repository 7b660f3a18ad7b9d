"""Judges a code archive in a process of its own, which is limited in time and memory.

The rules are in `archive`. Whatever an archive does to its reader, the caller goes on: the reader is ended, and the
archive refused. Called by gateways before they store an archive, and by trial runners before they keep one.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gangline.errors import unavailable
from services.common.archive import CPU_SECONDS, BadArchive, too_slow

# Wall-clock limit of the reader: a busy machine takes longer for the same computation.
_WALL_SECONDS = 4 * CPU_SECONDS
# Readers that run at once in this process; other archives wait for them.
_NUM_READERS = 2
_PROGRAM = "services.common.archive"
_ROOT = Path(__file__).resolve().parents[2]

_readers = ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="archive-judge")


async def judge_archive(path: Path) -> None:
    """Judges an archive. Raises BadArchive, and GanglineError `code.not_judged` where the machine is the cause."""
    await asyncio.get_running_loop().run_in_executor(_readers, _judge, path)


def _judge(path: Path) -> None:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", _PROGRAM, str(path)],
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as failure:
        # Its computing is limited by itself, so the machine is too busy, or its disk too slow.
        text = f"the code archive was not read within {_WALL_SECONDS} s on this machine; try again"
        raise unavailable("code.not_judged", text) from failure
    except OSError as failure:
        raise unavailable("code.not_judged", f"the code archive cannot be read now: {failure}; try again") from failure
    if done.returncode == -signal.SIGXCPU:
        raise too_slow(f"{CPU_SECONDS} s of computing")
    try:
        verdict = json.loads(done.stdout)
    except ValueError as failure:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise unavailable("code.not_judged", f"the code archive cannot be read now: {said[-1]}; try again") from failure
    if verdict:
        raise BadArchive(*verdict)
