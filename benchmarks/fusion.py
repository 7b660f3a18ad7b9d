"""Measures tuned tensor fusion beside torch's default, a constant 1 MiB and the best of a grid, over emulated slow
links.

Two ranks run in two network namespaces with a wire between them (root, a C compiler and /dev/net/tun are needed), at
real-time priority. The models sleep in place of computing; their parameters and exchanges are real. For each model and
link a trial is tuned as in training. Then all arms are measured again in rounds of random order, one step dropped after
each change of buckets and two kept. A step's time is the longest of both ranks. Run it as root with `python -m
benchmarks.fusion`; `--quick` is one round of the fastest cells, as a smoke test.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from benchmarks.wire import Link, can_emulate, run_ranks

# Real-time priority of the ranks, below that of the wire.
_PRIORITY = "5"

_FAST = Link("1 Gbit, 0.5 ms", 1000, 0.5)
_FAR = Link("1 Gbit, 10 ms", 1000, 10.0)
_SLOW = Link("100 Mbit, 5 ms", 100, 5.0)
_HERE = Link("loopback")


@dataclass(frozen=True, slots=True)
class Cell:
    """Describes a model on a link. least_gain: the least ratio of the default's step time to the tuned one's (T3); 0
    where only T4 counts."""

    model: str
    link: Link
    least_gain: float = 0.0
    arms: str = "grid"

    @property
    def name(self) -> str:
        return f"{self.model}, {self.link.name}"


CELLS = [
    Cell("egpt", _FAST, 1.12),
    Cell("emlp", _FAST, 1.12),
    Cell("edeep", _FAST, 1.12),
    Cell("edeep", _SLOW, 1.06),
    Cell("egpt", _FAR, 1.08),
    Cell("edeep", _FAR, 1.08),
    Cell("egpt", _HERE),
    Cell("eone", _HERE, arms="default"),
    Cell("etail", _HERE, arms="default"),
]
# The cells of --quick.
_QUICK = ("edeep, 1 Gbit, 0.5 ms", "etail, loopback")


class Result:
    """Holds the result of one cell: the output of the ranks, and the figures that follow from it. Times are in
    seconds."""

    def __init__(self, cell: Cell, printed: dict[str, Any]) -> None:
        self.cell = cell
        self.tuned: dict[str, Any] = printed["tuned"]
        self.recalled: dict[str, Any] = printed["recalled"]
        self._seconds: dict[str, list[list[float]]] = printed["seconds"]

    @property
    def arms(self) -> list[str]:
        return list(self._seconds)

    def median(self, arm: str) -> float:
        return statistics.median(seconds for turn in self._seconds[arm] for seconds in turn)

    def spread(self, arm: str) -> float:
        """Returns the inter-quartile range over the median."""
        samples = [seconds for turn in self._seconds[arm] for seconds in turn]
        low, _, high = statistics.quantiles(samples, n=4)
        return (high - low) / self.median(arm)

    @property
    def gain(self) -> float:
        return self.median("default") / self.median("tuned")

    @property
    def paired_gain(self) -> float:
        """Returns the median of the rounds' own ratios."""
        pairs = zip(self._seconds["default"], self._seconds["tuned"], strict=True)
        return statistics.median(a / b for default, tuned in pairs for a, b in zip(default, tuned, strict=True))

    @property
    def oracle(self) -> str:
        return min(self._seconds, key=self.median)

    @property
    def num_steps(self) -> int:
        return len(self.tuned["step_seconds"])

    @property
    def break_even_steps(self) -> float:
        """Returns the number of steps after which the trial, tuning included, has taken less time than the default
        would."""
        default = self.median("default")
        loss = self.tuned["wall_seconds"] - self.num_steps * default
        gain = default - self.median("tuned")
        return self.num_steps + max(0.0, loss) / gain if gain > 0 else math.inf

    @property
    def slowest_step_ratio(self) -> float:
        """Returns the slowest step after warm-up, over the default's."""
        return max(self.tuned["step_seconds"][2:], default=0.0) / self.median("default")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=5, help="how often all of it is done anew")
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--quick", action="store_true", help="two cells, one round")
    arguments = parser.parse_args()
    if not can_emulate():
        raise SystemExit("benchmarks.fusion makes network namespaces: run it as root, with cc, ip and chrt installed")
    cells = [cell for cell in CELLS if arguments.only in cell.name and (not arguments.quick or cell.name in _QUICK)]
    print(describe_machine())
    rounds = 2 if arguments.quick else arguments.rounds
    results = []
    for run in range(arguments.runs):
        for cell in cells:
            results.append(_measure(cell, rounds, seed=run))
            _print_cell(results[-1])
    _print_targets(results, *_measure_difference())


def _measure(cell: Cell, rounds: int, seed: int) -> Result:
    arguments = [cell.model, "--rounds", str(rounds), "--arms", cell.arms, "--seed", str(seed)]
    return Result(cell, _run_ranks(cell.link, "fused.py", arguments))


def _measure_difference() -> tuple[float, int]:
    """Returns the largest difference that tuning makes to the trained values, and the number of bucket changes."""
    with tempfile.TemporaryDirectory(prefix="gl-fusion-") as folder:
        tuned, untuned = Path(folder, "tuned"), Path(folder, "untuned")
        num_changes = int(_run_ranks(_FAST, "unchanged.py", ["--tune", "--file", str(tuned)])["num_changes"])
        _run_ranks(_FAST, "unchanged.py", ["--file", str(untuned)])
        pairs = zip(torch.load(tuned), torch.load(untuned), strict=True)
        return max(
            float((tuned_values - untuned_values).abs().max()) for tuned_values, untuned_values in pairs
        ), num_changes


def _run_ranks(link: Link, program: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Runs a program of workload/ on both hosts; returns what rank 0 printed last."""
    with tempfile.TemporaryDirectory(prefix="gl-fusion-") as memory:
        environment = {"GANGLINE_FUSION_DIR": memory}
        line = run_ranks(link, program, arguments, environment, prefix=("chrt", "-r", _PRIORITY))
    printed: dict[str, Any] = json.loads(line)
    return printed


def _print_cell(result: Result) -> None:
    tuned = result.tuned
    print(f"\n{result.cell.name}")
    if tuned["caps"]:
        caps = ", ".join(f"{cap / 2**20:.2f}" for cap in tuned["caps"][:6])
        print(f"  chosen: caps of {caps}{' ...' if len(tuned['caps']) > 6 else ''} MiB", end="")
    else:
        print("  chosen: torch's default", end="")
    print(
        f", after {result.num_steps} steps; link {1e3 * tuned['alpha_seconds']:.2f} ms + "
        f"{tuned['bytes_per_second'] / 1e6:.0f} MB/s, measured in {sum(tuned['probe_seconds']):.2f} s"
    )
    for arm in result.arms:
        ratio = result.median("default") / result.median(arm)
        print(
            f"  {arm if arm in ('default', 'tuned') else f'{arm} MiB':10} {1e3 * result.median(arm):8.1f} ms"
            f"  IQR {100 * result.spread(arm):4.1f} %  {ratio:.3f}x default"
        )
    sys.stdout.flush()


def _print_targets(results: Sequence[Result], difference: float, num_changes: int) -> None:
    print("\ntargets")
    raced = [result for result in results if result.cell.arms == "grid"]
    on_links = [result for result in results if result.cell.least_gain]
    tuned = [result for result in results if result.num_steps]
    to_oracle = [result.median(result.oracle) / result.median("tuned") for result in raced]
    _print_each("T1 oracle / tuned >= 0.97", raced, to_oracle, [value >= 0.97 for value in to_oracle])
    if to_oracle:
        mean = statistics.geometric_mean(to_oracle)
        print(f"{'   geometric mean >= 0.985':48} {mean:.3f} {_verdict(mean >= 0.985)}")
    steps = [float(result.num_steps) for result in tuned]
    _print_each("T2 steps until it is decided <= 40", tuned, steps, [value <= 40 for value in steps])
    if steps:
        median = statistics.median(steps)
        print(f"{'   median <= 30':48} {median:.0f} {_verdict(median <= 30)}")
    probes = [sum(result.tuned["probe_seconds"]) for result in tuned]
    limits = [max(0.5, 1.5 * result.median("default")) for result in tuned]
    in_time = [probe <= limit for probe, limit in zip(probes, limits, strict=True)]
    _print_each("T2 seconds for the link <= max(0.5, 1.5 steps)", tuned, probes, in_time)
    gains = [result.gain for result in on_links]
    is_enough = [result.gain >= result.cell.least_gain for result in on_links]
    _print_each("T3 default / tuned", on_links, gains, is_enough)
    far = [result for result in on_links if result.cell.name == f"egpt, {_FAR.name}"]
    constants = [result.median("1") / result.median("tuned") for result in far]
    _print_each("T3 1 MiB / tuned >= 1.05", far, constants, [value >= 1.05 for value in constants])
    here = [result for result in results if not result.cell.least_gain]
    floors = [result.paired_gain for result in here]
    _print_each("T4 default / tuned, paired >= 0.98", here, floors, [value >= 0.98 for value in floors])
    even = [result.break_even_steps for result in on_links]
    _print_each("T5 steps until all of it pays <= 150", on_links, even, [value <= 150 for value in even])
    _print_recall(tuned)
    is_equal = _verdict(difference == 0 and num_changes > 0)
    print(
        f"{'T7 largest difference to an untuned run':48} {difference:8g} {is_equal}  {num_changes} changes of buckets"
    )
    _print_switches(tuned)


def _print_recall(results: Sequence[Result]) -> None:
    is_recalled = [
        result.recalled["is_recalled"]
        and result.recalled["caps"] == result.tuned["caps"]
        and result.recalled["is_same_everywhere"]
        for result in results
    ]
    pairs = zip(results, is_recalled, strict=True)
    before = [float(result.recalled["steps_before"]) if is_so else math.nan for result, is_so in pairs]
    _print_each("T6 steps until recalled buckets are in place", results, before, is_recalled)


def _print_switches(results: Sequence[Result]) -> None:
    changed = [result for result in results if result.tuned["switch_seconds"]]
    usual = [1e3 * statistics.median(result.tuned["switch_seconds"]) for result in changed]
    _print_each("T8 change of buckets <= 10 ms: median", changed, usual, [value <= 10 for value in usual])
    slowest = [1e3 * max(result.tuned["switch_seconds"]) for result in changed]
    _print_each("   slowest", changed, slowest, [value <= 10 for value in slowest])
    ratios = [result.slowest_step_ratio for result in results]
    _print_each("T8 slowest step / default <= 1.5", results, ratios, [value <= 1.5 for value in ratios])


def _print_each(what: str, results: Sequence[Result], values: Sequence[float], is_met: Sequence[bool]) -> None:
    for result, value, is_so in zip(results, values, is_met, strict=True):
        print(f"{what:48} {value:8.3f} {_verdict(is_so)}  {result.cell.name}")


def _verdict(is_met: bool) -> str:
    return "met        " if is_met else "FALLS SHORT"


if __name__ == "__main__":
    run_benchmark(main)
