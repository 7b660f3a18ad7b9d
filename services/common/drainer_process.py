"""Starts the drainer, the process that delivers what ended trial runners have left (trial_runner/delivery/drainer.py).

Trial runner and agent call it, which share no other code that may start processes. They decide when one is needed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def start_drainer(spools: Path) -> subprocess.Popen[bytes]:
    """Starts it in a session of its own, so that it outlives the runner and the agent's cleanup after it. One that runs
    already makes it end at once. Raises OSError."""
    # -P: no folder adds modules to it.
    command = [sys.executable, "-P", "-m", "services.trial_runner.delivery.drainer", "--spools", str(spools)]
    with (spools / "drainer.log").open("ab") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd="/"
        )
