"""scripts/run_and_reap.py: the command's own status, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source import ROOT

REAP = [sys.executable, str(ROOT / "scripts" / "run_and_reap.py")]


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137)])
def test_status_is_the_commands(script: str, status: int) -> None:
    assert subprocess.run([*REAP, "bash", "-c", script], check=False, timeout=60).returncode == status


def test_what_outlives_the_command_is_ended_and_named() -> None:
    """A child in a session of its own and that child's child, as a runner and its ranks would be."""
    script = "exec 3< <(setsid bash -c 'sleep 4243 & echo $!; wait'); read pid <&3; echo $pid"
    environment = {**os.environ, "REAP_SETTLE_SECONDS": "0.5"}
    command = [*REAP, "bash", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "sleep 4243" in done.stderr
    assert not Path(f"/proc/{int(done.stdout)}").exists()
