"""A trial runner for the agent's tests: real processes that keep the contract of a runner and train nothing.

It takes the lock, writes exit.json, answers SIGTERM with PREEMPTED and SIGQUIT with KILLED, and may start a nursery.
What it does stands in the spec's config_json: {"nursery": true, "deaf": true, "code": 3, "garbage": true, "linger":
true, "metrics": true}. With "metrics" it listens, and writes the address into the file `listens`. It ends by itself
once the file `finish` lies in its folder. Each start adds its pid to the file `starts` once all is up.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

STOPS = {signal.SIGTERM: "PREEMPTED", signal.SIGQUIT: "KILLED"}


def main(arguments: dict[str, Any], fds: list[int]) -> int:
    """The target of a warm start."""
    assert len(fds) == 1, "the agent hands on its lock and nothing else"
    return _run(Path(arguments["directory"]))


def _run(folder: Path) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    plan = json.loads(json.loads((folder / "spec.json").read_text())["configJson"] or "{}")
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if plan.get("nursery"):
        for name in ("nursery.pid", "ranks.pid"):
            leader = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
            (folder / name).write_text(f"{leader.pid}\n")
    listening = socket.create_server(("127.0.0.1", 0)) if plan.get("metrics") else None
    if listening is not None:
        (folder / "listens").write_text(f"127.0.0.1:{listening.getsockname()[1]}")
    with (folder / "starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    print("the stand-in runs", flush=True)
    return _finish(folder, plan, _wait(folder, plan))


def _wait(folder: Path, plan: dict[str, Any]) -> str:
    while not (folder / "finish").exists():
        caught = signal.sigtimedwait(STOPS, 0.02)
        if caught is not None and not plan.get("deaf"):
            return STOPS[signal.Signals(caught.si_signo)]
    return "COMPLETED"


def _finish(folder: Path, plan: dict[str, Any], kind: str) -> int:
    if "code" in plan:
        return int(plan["code"])
    report = {
        "exit": {"kind": f"EXIT_KIND_{kind}", "message": "the stand-in ended"},
        "undelivered": [{"sequence": "3", "progress": {"batchesCompleted": "12"}}],
    }
    draft = folder / ".exit"
    draft.write_text("no json" if plan.get("garbage") else json.dumps(report))
    draft.replace(folder / "exit.json")
    while plan.get("linger"):
        signal.pause()
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--rank-forkserver", required=True)
    sys.exit(_run(parser.parse_args().spec.parent))
