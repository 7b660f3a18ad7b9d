"""Plays synthetic traces in virtual time: waits and makespan under the planner, beside two baselines.

Run as `python -m benchmarks.trace`. Both loads have 512 slots on 64 agents; every figure is the median over five seeds,
with the smallest and the largest. The first column is a pool with default settings: work that passes the head of the
queue is on call. The next columns are pools without preemption, once with run times from progress, as a live scheduler
knows them, and once with run times that are known at the submission. The baselines play the same traces in the same
run: strict submission order without backfill, and a restatement of Determined's documented priority rules (all requests
of these loads have one priority, at which those rules preempt nothing). The run fails when backfill has moved the start
of a head gang: when the gang would have fitted without the work that passed it, and that work was not stopped at once.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence

from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from benchmarks.statistic import summarise
from services.scheduler.simulator.engine import EngineContext, play
from services.scheduler.simulator.figure import Figures, figures_of
from services.scheduler.simulator.figure_report import describe_stop
from services.scheduler.simulator.load import LOADS, draw_load
from services.scheduler.simulator.strategy import choose_strategies
from services.scheduler.simulator.submission import Estimates

# Each seed is a trace of its own.
SEEDS = range(1, 6)
# Slots of each agent.
AGENTS = [8] * 64
INTENSITY = {"helios": 2.0, "llm-dev": 1.0}
"""helios alone hardly makes anybody wait on so many slots."""
ROWS: tuple[tuple[str, Estimates], ...] = (
    ("priority, preemption", "progress"),
    ("priority", "progress"),
    ("priority", "exact"),
    ("submission order", "progress"),
    ("documented priority", "progress"),
)
"""The first is a pool as it comes."""

Measure = Callable[[Figures], float | None]


def measures() -> dict[str, Measure]:
    sizes: dict[str, Measure] = {f"p95 wait, {name} slots (s)": _p95(name) for name in ("1", "2-8", "9-64", "65+")}
    return {
        "mean wait (s)": lambda figures: figures.waits.mean,
        **sizes,
        "makespan (h)": lambda figures: figures.makespan_seconds / 3600,
        "utilisation (%)": lambda figures: 100 * figures.utilisation,
        "preemptions": lambda figures: figures.preemptions,
        "heads": lambda figures: figures.head.count if figures.head else None,
        "heads moved by backfill": lambda figures: figures.head.moved if figures.head else None,
        "heads late on their first promise": lambda figures: figures.head.late if figures.head else None,
        "requests asked for their ETA": lambda figures: figures.eta_errors[0].count if figures.eta_errors else None,
        "ETA error (% of the wait)": _eta_error,
    }


def _p95(size: str) -> Measure:
    return lambda figures: figures.waits_by_size[size].p95 if size in figures.waits_by_size else None


def _eta_error(figures: Figures) -> float | None:
    """Returns the ETA error of requests when they first wait."""
    error = figures.eta_errors[0].median if figures.eta_errors else None
    return None if error is None else 100 * error


def play_all(load: str, seed: int, days: float) -> list[Figures]:
    submissions = draw_load(LOADS[load], random.Random(seed), sum(AGENTS), days, intensity=INTENSITY[load])
    rows = []
    for name, estimates in ROWS:
        (strategy,) = choose_strategies([name])
        played = play(submissions, AGENTS, strategy, EngineContext(estimates))
        rows.append(figures_of(name, played, strategy.has_head))
    return rows


def describe(samples: Sequence[float | None]) -> str:
    """Summarises the seeds that have a value: not in every trace does a request wait."""
    present = [sample for sample in samples if sample is not None]
    if not present:
        return "-"
    summary = summarise(present)
    return f"{summary.p50:.0f} ({summary.minimum:.0f} to {summary.maximum:.0f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=2.0, help="of submissions (default 2)")
    days = parser.parse_args().days
    print(describe_machine())
    print(describe_stop(EngineContext()))
    num_moved = 0
    for load, intensity in INTENSITY.items():
        played = [play_all(load, seed, days) for seed in SEEDS]
        num_moved += sum(figures.head.moved for row in played for figures in row if figures.head)
        counts = summarise([row[0].submissions for row in played])
        print(f"\n{load}, {intensity:g} times its arrivals, {days:g} days, {counts.p50:.0f} submissions")
        print(f"{'':<34}" + "".join(f"{f'{name}, {estimates}':>32}" for name, estimates in ROWS))
        for name, measure in measures().items():
            columns = [describe([measure(row[number]) for row in played]) for number in range(len(ROWS))]
            print(f"{name:<34}" + "".join(f"{column:>32}" for column in columns), flush=True)
    print(f"\nheads moved by backfill, in all traces: {num_moved}")
    return 1 if num_moved else 0


if __name__ == "__main__":
    run_benchmark(main)
