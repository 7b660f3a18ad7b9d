"""The program behind `gangline simulate`, as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.source import ROOT

SNAPSHOT = ROOT / "examples" / "simulator" / "snapshot.json"


def _run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "services.scheduler.simulator", *arguments]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, timeout=110, check=False
    )


def test_a_snapshot_is_planned_and_a_broken_one_refused(tmp_path: Path) -> None:
    done = _run(str(SNAPSHOT), "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["to_release"] == ["sweep-1"]
    broken = tmp_path / "broken.json"
    broken.write_text('{"agents": [\n}', encoding="utf-8")
    refused = _run(str(broken), folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr == f"gangline simulate: {broken}: line 2, column 1: no JSON (Expecting value)\n"
    trace = str(SNAPSHOT.with_name("trace.csv"))
    refused = _run(trace, folder=tmp_path)
    advice = f"{trace} is a trace and no snapshot in JSON; play it with: --trace {trace}"
    assert (refused.returncode, refused.stderr) == (2, f"gangline simulate: {advice}\n")
