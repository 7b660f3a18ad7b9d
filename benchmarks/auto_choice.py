"""Measures whether `parallelism: auto` chooses the fastest strategy that fits.

Small models train on two ranks over gloo, one thread each: over the loopback device, and over emulated links between
two network namespaces (root, a C compiler and /dev/net/tun are needed; skipped without them). auto chooses through
gangline.pytorch.init, with ample memory and under limits that leave ddp, or ddp and zero1, without a fitting row. Then
every row of the table trains by name, in random order in each pass, and its step is measured: the median of the later
steps, the longest of both ranks. The figure is the step of the chosen row over that of the fastest row that fits. The
peers are ddp wherever it fits, and a rule of thumb: ddp if it fits, else zero1, zero2, zero3, a pipeline. Trials on
emulated links recompute no activations, so that their tables have five rows.

Run it as root with `python -m benchmarks.auto_choice`; `--quick` is one run of two cases, as a smoke test.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.choice_judgment import AMPLE, Judgment, Outcome, judge
from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from benchmarks.wire import Link, can_emulate, run_ranks
from gangline.config.strategy_choice import parse_choice

# The chosen row's step over the fastest one's must not exceed this.
BAR = 1.10
PASSES = 2

_HERE = Link("loopback")
_FAST = Link("1 Gbit, 0.5 ms", 1000, 0.5)
_SLOW = Link("100 Mbit, 5 ms", 100, 5.0)


@dataclass(frozen=True, slots=True)
class Case:
    """A model of benchmarks/sized.py on a link."""

    model: str
    batch: int  # records of all ranks
    link: Link
    steps: int = 3  # counted steps of each pass
    passes: int = PASSES

    @property
    def name(self) -> str:
        return f"{self.model}, batch {self.batch}, {self.link.name}"

    @property
    def recomputation(self) -> str:
        return "none" if self.link.mbit else "auto"


CASES = [
    Case("gpt", 8, _HERE),
    Case("cnn", 32, _HERE),
    Case("recommender", 64, _HERE),
    Case("gpt", 8, _FAST),
    Case("cnn", 32, _FAST),
    Case("recommender", 64, _FAST),
    Case("cnn", 8, _SLOW),
    # Half a second to two for a step.
    Case("recommender", 64, _SLOW, steps=3, passes=1),
]
_QUICK = ("recommender, batch 64, loopback", "recommender, batch 64, 1 Gbit, 0.5 ms")
# The outcomes of each level of memory.
Levels = dict[str, Outcome]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--quick", action="store_true", help="two cases, one run")
    arguments = parser.parse_args()
    print(describe_machine())
    cases = [case for case in CASES if arguments.only in case.name and (not arguments.quick or case.name in _QUICK)]
    if not can_emulate() and any(case.link.mbit for case in cases):
        print("without emulated links, which need root, cc, ip, chrt and /dev/net/tun")
        cases = [case for case in cases if not case.link.mbit]
    results: dict[str, list[Levels]] = {case.name: [] for case in cases}
    for number in range(1 if arguments.quick else arguments.runs):
        for case in cases:
            results[case.name].append(_measure(case, seed=number))
            choices = ", ".join(f"{level}: {each.record.choice}" for level, each in results[case.name][-1].items())
            print(f"run {number + 1}, {case.name}: {choices}", flush=True)
    worst = [_print_case(name, runs) for name, runs in results.items()]
    is_met = all(ratio <= BAR for ratio in worst)
    print(f"\nlargest median of a chosen step over the fastest one's, at most {BAR}: {max(worst):.3f}", end="")
    print("" if is_met else "  FALLS SHORT")
    if not is_met:
        raise SystemExit(1)


def _measure(case: Case, seed: int) -> Levels:
    arguments = [case.model, "--batch", str(case.batch), "--steps", str(case.steps), "--passes", str(case.passes)]
    arguments += ["--recomputation", case.recomputation, "--seed", str(seed)]
    printed: dict[str, Any] = json.loads(run_ranks(case.link, "chosen.py", arguments, {}))
    return {level: Outcome(parse_choice(text), printed["seconds"]) for level, text in printed["records"].items()}


def _print_case(name: str, runs: Sequence[Levels]) -> float:
    """Prints all levels of a case. Returns the largest median ratio."""
    print(f"\n{name}")
    rows = {row.name: row for row in runs[0][AMPLE].fitting}
    for row in rows.values():
        predicted = [each.step_seconds or 0.0 for run in runs for each in run[AMPLE].fitting if each.name == row.name]
        measured = [run[AMPLE].seconds[row.name] for run in runs]
        print(
            f"  {row.name:52} {row.bytes['total'] / 2**20:7.1f} MiB  predicted {_milliseconds(predicted)}"
            f"  measured {_milliseconds(measured)}"
        )
    worst = 0.0
    for level in runs[0]:
        judgment = judge([run[level] for run in runs])
        _print_level(level, judgment)
        worst = max(worst, judgment.median)
    return worst


def _print_level(level: str, judgment: Judgment) -> None:
    choices = ", ".join(f"{name} {count} x" for name, count in judgment.choices.items())
    verdict = "" if judgment.median <= BAR else "  FALLS SHORT"
    print(f"  memory {level}: chose {choices}; fastest {judgment.fastest}{verdict}")
    print(
        f"    step over the fastest: auto {_ratio(judgment.ratios)}, ddp {_ratio(judgment.ddp_ratios)}, "
        f"rule of thumb {_ratio(judgment.thumb_ratios)}"
    )


def _milliseconds(seconds: Sequence[float]) -> str:
    low, middle, high = (1e3 * value for value in (min(seconds), statistics.median(seconds), max(seconds)))
    return f"{middle:7.1f} ms ({low:.1f} to {high:.1f})"


def _ratio(ratios: Sequence[float]) -> str:
    if not ratios:
        return "does not fit"
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


if __name__ == "__main__":
    run_benchmark(main)
