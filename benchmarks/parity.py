"""Checks that every strategy trains as one process does, and continues from every other strategy's checkpoint.

Trains a transformer of four blocks, 20 steps with clipped gradients on equal global batches, with SGD with momentum and
AdamW, fp32 and fp64, on 2 and 4 ranks over gloo. Then each strategy on 1, 2 and 4 ranks saves a checkpoint after 8 of
16 batches, and each reads each checkpoint. The worst of five seeds is printed. Differences are exact, so the machine
and its load do not matter. Adam turns the rounding of gradients near zero into steps of the learning rate's size, so
with it fp32 parameters are shown but not judged. Run it with `python -m benchmarks.parity`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark, torchrun

WORKLOAD = Path(__file__).parent / "workload" / "layered.py"
STRATEGIES = {1: ["none"], 2: ["ddp", "zero1", "zero2", "zero3"], 4: ["ddp", "zero1", "zero2", "zero3", "hsdp"]}
# Largest allowed differences, by the number of bits.
LOSS_BOUND = {32: 1e-5, 64: 1e-12}
PARAMETER_BOUND = {32: 1e-5, 64: 1e-10}
RESUME_BOUND = 1e-5
# Steps of a comparison; batches before the checkpoint, and in all, of a continued training.
STEPS, SAVED, ALL = 20, 8, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory(prefix="gl-parity-") as folder:
        is_right = compare(Path(folder), range(arguments.seeds))
        is_right &= resume(Path(folder))
    print("all within their bounds" if is_right else "NOT within their bounds")
    if not is_right:
        raise SystemExit(1)


def compare(folder: Path, seeds: range) -> bool:
    """Prints the worst differences from one process. Returns whether all are within their bounds."""
    kinds = list(product(("sgd", "adamw"), (32, 64), seeds))

    def cases(strategies: list[str]) -> list[dict[str, Any]]:
        return [
            {"strategy": strategy, "optimizer": optimizer, "bits": bits, "seed": seed, "batches": STEPS}
            for strategy in strategies
            for optimizer, bits, seed in kinds
        ]

    alone = dict(zip(kinds, run(folder, 1, cases(STRATEGIES[1])), strict=True))
    is_right = True
    print(f"{STEPS} steps against one process, worst of {len(seeds)} seeds: losses / parameters")
    for size in (2, 4):
        outcomes = iter(run(folder, size, cases(STRATEGIES[size])))
        for strategy in STRATEGIES[size]:
            worst: dict[tuple[str, int], tuple[float, float]] = {}
            for optimizer, bits, seed in kinds:
                reference, outcome = alone[optimizer, bits, seed], next(outcomes)
                before = worst.get((optimizer, bits), (0.0, 0.0))
                worst[optimizer, bits] = tuple(map(max, before, differences_of(outcome, reference)))  # type: ignore[assignment]  # pairs
            is_right &= all(is_within(*kind, *differences) for kind, differences in worst.items())
            columns = (f"{kind[0]} fp{kind[1]} {loss:.1e} / {value:.1e}" for kind, (loss, value) in worst.items())
            print(f"  {size} x {strategy:6}  " + "   ".join(columns), flush=True)
    return is_right


def resume(folder: Path) -> bool:
    """Prints how far trainings that continue from each checkpoint are from an uninterrupted one. Returns whether all
    are within the bound."""
    base = {"optimizer": "adamw", "bits": 32, "seed": 0}
    (uninterrupted,) = run(folder, 1, [{**base, "strategy": "none", "batches": ALL}])
    saved = {
        (size, strategy): outcome["checkpoint"]
        for size, strategies in STRATEGIES.items()
        for strategy, outcome in zip(
            strategies,
            run(
                folder,
                size,
                [{**base, "strategy": saving_strategy, "batches": SAVED} for saving_strategy in strategies],
            ),
            strict=True,
        )
    }
    print(f"losses of batches {SAVED + 1} to {ALL} after a restart, against an uninterrupted process")
    names = [f"{size} x {strategy}" for size, strategy in saved]
    print(f"  {'saved by, read by':18}" + "".join(f"{name:>10}" for name in names))
    worst: dict[tuple[int, str], list[float]] = {place: [] for place in saved}
    for size, strategies in STRATEGIES.items():
        runs = [
            {**base, "strategy": strategy, "batches": ALL, "checkpoint": checkpoint}
            for strategy in strategies
            for checkpoint in saved.values()
        ]
        outcomes = iter(run(folder, size, runs))
        for _ in strategies:
            for place in saved:
                worst[place].append(_largest(next(outcomes)["losses"], uninterrupted["losses"][SAVED:]))
    for name, row in zip(names, worst.values(), strict=True):
        print(f"  {name:18}" + "".join(f"{value:10.1e}" for value in row), flush=True)
    return all(value <= RESUME_BOUND for row in worst.values() for value in row)


def run(folder: Path, size: int, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the chief's result of each case, on so many ranks."""
    launcher = torchrun(size) if size > 1 else [sys.executable]
    command = [*launcher, str(WORKLOAD), str(folder), json.dumps(cases)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    results: list[dict[str, Any]] = torch.load(folder / "found.pt", weights_only=True)
    return results


def differences_of(outcome: dict[str, Any], reference: dict[str, Any]) -> tuple[float, float]:
    pairs = ((outcome["model"][name], value) for name, value in reference["model"].items())
    parameters = max(float((ours.double() - theirs.double()).abs().max()) for ours, theirs in pairs)
    return _largest(outcome["losses"], reference["losses"]), parameters


def _largest(ours: list[float], theirs: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def is_within(optimizer: str, bits: int, losses: float, parameters: float) -> bool:
    is_judged = optimizer == "sgd" or bits == 64
    return losses <= LOSS_BOUND[bits] and (parameters <= PARAMETER_BOUND[bits] or not is_judged)


if __name__ == "__main__":
    run_benchmark(main)
