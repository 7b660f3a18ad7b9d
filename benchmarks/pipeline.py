"""Checks that every form of a pipeline trains as one process does, and measures its step beside torch's by hand.

Parity: a transformer of four blocks, 20 steps with clipped gradients on equal global batches, SGD with momentum and
AdamW, fp32 and fp64. Differences are exact, so the machine and its load do not matter.

Step time: a transformer of eight blocks on two ranks over gloo, one thread each; --runs times each side in turn. The
peers are the same two stages written with torch.distributed.pipelining alone, and the ideal: one process, divided by
the stages, times 1 + (P - 1) / n for the bubble, plus the measured transfer of a step. Run it with `python -m
benchmarks.pipeline`.
"""

from __future__ import annotations

import argparse
import ast
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.parity import STEPS, differences_of, is_within, run

WORKLOAD = Path(__file__).parent / "workload" / "staged.py"
# Bars: our step over that of torch by hand, and over the ideal.
BY_HAND_BAR, IDEAL_BAR = 1.02, 1.05
STAGES, MICROBATCHES = 2, 8
# Functions of the workload.
SIDES = ("gangline", "by_hand", "alone", "transfer")
FORMS: dict[int, list[dict[str, Any]]] = {
    2: [
        {"schedule": "GPipe"},
        {"schedule": "1F1B"},
        {"schedule": "Interleaved1F1B"},
        {"schedule": "ZBVZeroBubble"},
        {"split": ["blocks.1"]},
        {"split": "time"},
    ],
    4: [
        {},
        {"stages": 2},
        {"stages": 2, "schedule": "Interleaved1F1B"},
        {"stages": 2, "schedule": "ZBVZeroBubble"},
        {"stages": 2, "replicas": "zero2"},
        {"stages": 2, "replicas": "zero2", "schedule": "Interleaved1F1B"},
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=("parity", "time"))
    arguments = parser.parse_args()
    print(describe_machine())
    is_good = True
    if arguments.only != "time":
        with tempfile.TemporaryDirectory(prefix="gl-pipeline-") as folder:
            is_good &= compare(Path(folder))
    if arguments.only != "parity":
        is_good &= measure(arguments.runs)
    print("all within their bounds" if is_good else "NOT within their bounds")
    if not is_good:
        raise SystemExit(1)


def compare(folder: Path) -> bool:
    """Prints the differences of each form from one process. Returns whether all are within their bounds."""
    kinds = [(optimizer, bits) for optimizer in ("sgd", "adamw") for bits in (32, 64)]

    def cases(strategies: list[Any]) -> list[dict[str, Any]]:
        return [
            {"strategy": strategy, "optimizer": optimizer, "bits": bits, "seed": 0, "batches": STEPS}
            for strategy in strategies
            for optimizer, bits in kinds
        ]

    alone = dict(zip(kinds, run(folder, 1, cases(["none"])), strict=True))
    is_good = True
    print(f"{STEPS} steps against one process: losses / parameters")
    for size, forms in FORMS.items():
        outcomes = iter(run(folder, size, cases([{"strategy": "pipeline", **form} for form in forms])))
        for form in forms:
            columns = []
            for kind in kinds:
                loss, value = differences_of(next(outcomes), alone[kind])
                is_good &= is_within(*kind, loss, value)
                columns.append(f"{kind[0]} fp{kind[1]} {loss:.1e} / {value:.1e}")
            text = ", ".join(f"{key} {entry}" for key, entry in form.items()) or "4 stages"
            print(f"  {size} ranks, {text:40}" + "   ".join(columns), flush=True)
    return is_good


def measure(runs: int) -> bool:
    """Prints the step times. Returns whether ours is within the bars of its peers."""
    samples: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(runs):
        for side, seconds in samples.items():
            seconds.append(_step_seconds(side))
    medians = {side: statistics.median(seconds) for side, seconds in samples.items()}
    for side, seconds in samples.items():
        print(f"  {side:10} {1000 * medians[side]:8.2f} ms ({1000 * min(seconds):.2f} to {1000 * max(seconds):.2f})")
    ideal = medians["alone"] / STAGES * (1 + (STAGES - 1) / MICROBATCHES) + medians["transfer"]
    by_hand = medians["gangline"] / medians["by_hand"]
    over_ideal = medians["gangline"] / ideal
    print(f"a step of ours over torch.distributed.pipelining by hand: {by_hand:.3f} (bar {BY_HAND_BAR})")
    print(f"a step of ours over the ideal of {1000 * ideal:.2f} ms: {over_ideal:.3f} (bar {IDEAL_BAR})")
    # The whole function by hand, and the part of the configuration that names the strategy.
    print(f"lines of user code for the stages: by hand {_lines_of('by_hand')}, ours 1 (parallelism: pipeline)")
    return by_hand <= BY_HAND_BAR and over_ideal <= IDEAL_BAR


def _step_seconds(side: str) -> float:
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", str(STAGES), "--standalone"]
    command = [sys.executable, *([] if side == "alone" else torchrun), str(WORKLOAD), side, str(MICROBATCHES)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="gl-staged-") as folder:
        # Standard error stays this program's own, so that the reason of a failure is seen.
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("median "))
    return float(line.split()[1])


def _lines_of(function: str) -> int:
    """Returns the lines of a function of the workload that are not empty."""
    text = WORKLOAD.read_text()
    (node,) = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == function)
    return sum(bool(line.strip()) for line in text.splitlines()[node.lineno - 1 : node.end_lineno])


if __name__ == "__main__":
    main()
