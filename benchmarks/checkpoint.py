"""Measures how long a checkpoint stops training: saved in the background, saved while it waits, and torch's own ways.

Two ranks over gloo train a stack of linear layers of 50 MB and of 500 MB of state (parameters and Adam's moments) under
ddp and zero3, and save to a directory. For each save it prints the seconds of the call itself, by how much the block of
steps that began with it took longer than the block before, and when the checkpoint was complete. Ranks and writing
share the cores here, so on a busy machine only the call is meaningful. All ways take turns in the same processes, five
rounds. Run it with `python -m benchmarks.checkpoint`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark, torchrun
from benchmarks.statistic import summarise

WORKLOAD = Path(__file__).parent / "workload" / "saving.py"
TORCHRUN = torchrun(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--state-mb", type=int, nargs="+", default=[50, 500])
    parser.add_argument("--strategies", nargs="+", default=["ddp", "zero3"])
    arguments = parser.parse_args()
    print(describe_machine())
    for state_mb in arguments.state_mb:
        for strategy in arguments.strategies:
            measure(strategy, state_mb, arguments.runs, arguments.steps)


def measure(strategy: str, state_mb: int, runs: int, steps: int) -> None:
    with tempfile.TemporaryDirectory(prefix="gl-saving-") as folder:
        wanted = {"folder": folder, "strategy": strategy, "state_mb": state_mb, "runs": runs, "steps": steps}
        done = subprocess.run(
            [*TORCHRUN, str(WORKLOAD), json.dumps(wanted)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    entries_by_way: dict[str, list[dict[str, Any]]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            entries_by_way.setdefault(entry["way"], []).append(entry)
    step = summarise([entry["step"] for entries in entries_by_way.values() for entry in entries])
    print(f"{strategy}, {state_mb} MB of state, {runs} saves each; a step without a save takes p50 {step.p50:.3f} s")
    for way, entries in entries_by_way.items():
        cells = []
        for title, key in (("call", "call"), ("training longer by", "slower"), ("complete after", "complete")):
            summary = summarise([entry[key] for entry in entries])
            cells.append(f"{title} p50 {summary.p50:6.3f} ({summary.minimum:.3f} to {summary.maximum:.3f}) s")
        print(f"  {way:28}" + "  ".join(cells), flush=True)


if __name__ == "__main__":
    run_benchmark(main)
