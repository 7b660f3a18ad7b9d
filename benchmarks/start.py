"""Measures the time from `experiment create` to the first optimizer step, beside a cold torchrun of the same model.

Starts a small CNN on tensors in memory 20 times, on 2 slots of one agent, each submitted after the previous one has
ended. The peer is started cold 5 times: `torchrun --nproc_per_node 2` of the plain loop in workload/bare.py. Run it
with `python -m benchmarks.start`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import time
from dataclasses import astuple, fields
from itertools import pairwise
from pathlib import Path

from benchmarks.cluster import running_cluster
from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark, torchrun
from benchmarks.statistic import Summary, summarise
from gangline.client import Client
from gangline.domain.allocation import Timeline

WORKLOAD = Path(__file__).parent / "workload"
TORCHRUN = torchrun(2)
CONFIG = """
name: benchmark-start
entrypoint: trial:BenchmarkTrial
hyperparameters: {global_batch_size: 64, turnstile: "", steps_per_block: 100}
searcher: {name: single, metric: validation_loss, max_length: {batches: 1}}
resources: {slots_per_trial: 2}
max_restarts: 0
"""
PHASES = [phase.name.removesuffix("_at") for phase in fields(Timeline)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--peer-starts", type=int, default=5)
    arguments = parser.parse_args()
    print(describe_machine())
    peer = [_start_torchrun() for _ in range(arguments.peer_starts)]
    with running_cluster(agents=1, slots=2) as (client, _):
        _start_gangline(client)  # the first one also waits for the warm process to have imported torch
        starts = [_start_gangline(client) for _ in range(arguments.starts)]
    totals = [total for total, _ in starts]
    ours, theirs = summarise(totals), summarise(peer)
    _print_row("gangline, create returned -> first step", ours)
    _print_row("cold torchrun, launch -> first step", theirs)
    print(f"gangline / torchrun, medians: 1/{theirs.p50 / ours.p50:.1f}")
    print("where the time goes (seconds, median and p95 of each phase):")
    for index, phase in enumerate(PHASES):
        _print_row(f"  {phase}", summarise([phases[index] for _, phases in starts]))


def _start_gangline(client: Client) -> tuple[float, list[float]]:
    """Returns the seconds from the return of create to the first step, and the seconds of each phase."""
    created = client.create_experiment(CONFIG, WORKLOAD)
    returned_at = time.time()
    view = client.wait_experiment(created.experiment.id)
    trial = view.trials[0].trial
    if view.experiment.outcome != "COMPLETED":
        raise SystemExit(
            f"experiment {created.experiment.id} ended {view.experiment.outcome}: {view.experiment.reason}"
        )
    moments = [created.experiment.created_at, *astuple(trial.timeline)]
    phases = [later - earlier for earlier, later in pairwise(moments)]
    return trial.timeline.first_step_at - returned_at, phases


def _start_torchrun() -> float:
    began_at = time.time()
    done = subprocess.run([*TORCHRUN, "bare.py", "start"], cwd=WORKLOAD, check=True, capture_output=True, text=True)
    return min(float(stamp) for stamp in re.findall(r"first step at ([\d.]+)", done.stdout)) - began_at


def _print_row(name: str, summary: Summary) -> None:
    print(
        f"{name:45} n {summary.count:3}  min {summary.minimum:7.3f}  p50 {summary.p50:7.3f}  "
        f"p95 {summary.p95:7.3f}  max {summary.maximum:7.3f} s"
    )


if __name__ == "__main__":
    run_benchmark(main)
