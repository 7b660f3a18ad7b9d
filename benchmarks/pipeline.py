"""Checks that every form of a pipeline trains as one process does, and measures its step beside torch's by hand.

Parity: a transformer of four blocks, 20 steps with clipped gradients on equal global batches, SGD with momentum and
AdamW, fp32 and fp64. Differences are exact, so the machine and its load do not matter.

Step time: a transformer of eight blocks on two ranks over gloo, one thread each. The peer is the same two stages
written with torch.distributed.pipelining alone. The ideal is one process's step, divided by the stages, times
1 + (P - 1) / n for the bubble, plus the measured transfer of a step. It is given twice: with the other core idle
meanwhile, and with both ranks training alone at the same time, as two busy cores of one machine share its caches and
memory. All programs of a run are up at once, and exactly one of them runs a block of steps at a time, in random order;
every run starts them anew (contest.py explains why). The number of runs is the one that brings the 95 % interval of
every ratio within 2 %, at least five and at most --runs. Run it with `python -m benchmarks.pipeline`.
"""

from __future__ import annotations

import argparse
import ast
import os
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.contest import Contest
from benchmarks.machine import describe_machine
from benchmarks.parity import STEPS, differences_of, is_within, run
from benchmarks.process import run_benchmark, torchrun
from benchmarks.statistic import Ratio, mean_of_runs
from benchmarks.turnstile import WORKLOAD as FOLDER
from benchmarks.turnstile import programs_at_turnstile

WORKLOAD = FOLDER / "staged.py"
# Bars: our step over that of torch by hand, and over the ideal.
BY_HAND_BAR, IDEAL_BAR = 1.02, 1.05
STAGES, MICROBATCHES = 2, 8
STEPS_PER_BLOCK, ROUNDS = 2, 6
# Programs without stages, and what they measure.
IDEALS = {"alone": "one process alone", "both_alone": "two processes at the same time"}
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
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--width", type=int, default=384, help="of the model whose step is timed; a multiple of 6")
    parser.add_argument("--only", choices=("parity", "time"))
    arguments = parser.parse_args()
    print(describe_machine())
    is_good = True
    if arguments.only != "time":
        with tempfile.TemporaryDirectory(prefix="gl-pipeline-") as folder:
            is_good &= compare(Path(folder))
    if arguments.only != "parity":
        is_good &= measure(arguments.runs, arguments.width)
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


def measure(runs: int, width: int) -> bool:
    """Prints the step times. Returns whether ours is within the bars of its peers."""
    contest, transfers = Contest(STEPS_PER_BLOCK), []
    launcher = torchrun(STAGES)
    options = ["--microbatches", str(MICROBATCHES), "--width", str(width)]
    commands = {side: [*launcher, WORKLOAD.name, side] for side in ("gangline", "by_hand", *IDEALS)}
    for _ in range(runs):
        transfers.append(_transfer_seconds([*launcher, str(WORKLOAD), "transfer", *options]))
        with programs_at_turnstile(commands, [*options, "--steps-per-block", str(STEPS_PER_BLOCK)]) as sides:
            contest.run(sides, ROUNDS)
        if contest.is_enough():
            break
    contest.print_steps()
    print(f"transfer   {1000 * statistics.median(transfers):.3f} ms a step (max {1000 * max(transfers):.3f})")
    by_hand = contest.wall_ratio("gangline", "by_hand")
    print(f"a step of ours over torch.distributed.pipelining by hand: {by_hand} (bar {BY_HAND_BAR})")
    contest.print_runs("gangline", "by_hand")
    is_good = by_hand.mean <= BY_HAND_BAR
    for baseline, meaning in IDEALS.items():
        for side in ("gangline", "by_hand"):
            ratio = _over_ideal(contest, side, baseline, transfers)
            print(f"a step of {side} over the ideal from {meaning}: {ratio} (bar {IDEAL_BAR})")
            if (side, baseline) == ("gangline", "both_alone"):
                is_good &= ratio.mean <= IDEAL_BAR
    # The whole function by hand, and the part of the configuration that names the strategy.
    print(f"lines of user code for the stages: by hand {_lines_of('by_hand')}, ours 1 (parallelism: pipeline)")
    return is_good


def _over_ideal(contest: Contest, side: str, baseline: str, transfers: Sequence[float]) -> Ratio:
    """Returns the step of a side over the ideal that follows from a program without stages, run by run."""
    share = (1 + (STAGES - 1) / MICROBATCHES) / STAGES
    own, alone = contest.samples[side].wall, contest.samples[baseline].wall
    return mean_of_runs(
        [
            statistics.fmean(mine) / (statistics.fmean(whole) * share + STEPS_PER_BLOCK * seconds)
            for mine, whole, seconds in zip(own, alone, transfers, strict=True)
        ]
    )


def _transfer_seconds(command: list[str]) -> float:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # Standard error stays this program's own, so that the reason of a failure is seen.
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("median "))
    return float(line.split()[1])


def _lines_of(function: str) -> int:
    """Returns the lines of a function of the workload that are not empty."""
    text = WORKLOAD.read_text()
    (node,) = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == function)
    return sum(bool(line.strip()) for line in text.splitlines()[node.lineno - 1 : node.end_lineno])


if __name__ == "__main__":
    run_benchmark(main)
