"""Measures how many trivial experiments complete in a second, and how many are submitted into a deep queue, beside
Slurm.

The cluster is complete and real: `gangline up` with etcd, scheduler, gateway, agents and, for every allocation, a trial
runner and its rank. Slurm is Debian's slurm-wlm with as many node daemons of as many processors, on the same machine,
in turn with ours. It is set up as its own guide for high throughput advises (slurm_cluster.py), and once more with its
defaults. Every run starts both anew. Clusters of several sizes are measured one after another: with few slots the start
of a job counts, with many its processor time.

1. `--jobs` experiments of one slot whose command is `true`, submitted by four clients at once: from the first submit to
the end of the last one. No job may be stranded.
2. All slots are taken; `--deep` experiments wait; then four clients submit as many more.

A client of ours is a process that holds a connection and sends the configuration; the code was uploaded once
(clients.py). A client of Slurm's is a thread that runs `sbatch` for each job, as its users do. The time to start that
program alone is printed too, so that it is not mistaken for the controller's work.

Run it with `python -m benchmarks.throughput`, as root for Slurm's part; without it only our own figures are printed.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.clients import NUM_CLIENTS, config_json, connected_clients, submit_all
from benchmarks.cluster import running_cluster
from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark, wait_until
from benchmarks.slurm_cluster import HIGH_THROUGHPUT, Slurm, SlurmMissing, running_slurm
from benchmarks.statistic import summarise
from gangline.client import Client
from gangline.client.transfer.packing import pack_code
from gangline.domain.state import Outcome

# The bar for experiments that complete in a second.
JOBS_PER_SECOND = 60.0
# The bar where there is no Slurm to compare with.
SUBMITS_PER_SECOND = 150.0
DEADLINE_SECONDS = 100.0
POLL_SECONDS = 0.2
_wait_until = partial(wait_until, limit_seconds=DEADLINE_SECONDS, pause_seconds=POLL_SECONDS)
# Experiments in one listing.
PAGE = 200
SLEEP = "sleep 3600"


@dataclass(frozen=True)
class Load:
    """Describes a load."""

    nodes: int  # agents, or node daemons
    slots: int  # slots of each node
    jobs: int
    deep: int

    @property
    def total_slots(self) -> int:
        return self.nodes * self.slots


@dataclass(frozen=True)
class Figures:
    jobs_per_second: float
    submits_per_second: float
    stranded: int


def measure_gangline(load: Load) -> Figures:
    with tempfile.TemporaryDirectory() as folder, running_cluster(load.nodes, load.slots) as (client, _):
        Path(folder, "README").write_text("The command needs no code.\n")
        code = pack_code(Path(folder))
        client.upload_code(code)
        with connected_clients() as pool:
            # The first ones also wait for the warm processes and fetch the code.
            finish(client, submit_all(pool, _configs("warm", 2 * load.total_slots), code.sha256))
            began_at = time.time()
            ids = submit_all(pool, _configs("trivial", load.jobs), code.sha256)
            stranded, ended_at = finish(client, ids)
            blocker = config_json("blocker", SLEEP, load.total_slots)
            client.submit_experiment(blocker, code.sha256)
            _wait_until(lambda: client.get_cluster().num_slots_used == load.total_slots, "the slots are not taken")
            submit_all(pool, _configs("waiting", load.deep), code.sha256)
            deep_at = time.time()
            submit_all(pool, _configs("measured", load.deep), code.sha256)
            submits = load.deep / (time.time() - deep_at)
    return Figures(load.jobs / (ended_at - began_at), submits, stranded)


def _configs(name: str, count: int) -> list[str]:
    return [config_json(f"{name}-{number}", "true") for number in range(count)]


def finish(client: Client, ids: list[int]) -> tuple[int, float]:
    """Waits until nothing waits or runs. Returns how many of these have not completed, and when the last one ended."""

    def is_quiet() -> bool:
        cluster = client.get_cluster()
        return not cluster.num_pending and not cluster.num_slots_used

    _wait_until(is_quiet, "experiments are left")
    wanted, completed, ended_at, before_id = set(ids), 0, 0.0, 0
    while page := client.list_experiments(PAGE, before_id):
        own = [experiment for experiment in page if experiment.id in wanted]
        completed += sum(experiment.outcome is Outcome.COMPLETED for experiment in own)
        ended_at = max([ended_at, *(experiment.ended_at for experiment in own)])
        before_id = page[-1].id
    return len(ids) - completed, ended_at


def measure_slurm(load: Load, slurm: Slurm) -> Figures:
    def submit(number: int) -> None:
        slurm.submit("true" if number >= 0 else SLEEP, "--ntasks=1")

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        list(pool.map(submit, range(NUM_CLIENTS)))
        slurm.drain(DEADLINE_SECONDS)
        began_at = time.time()
        list(pool.map(submit, range(load.jobs)))
        stranded = slurm.drain(DEADLINE_SECONDS)
        jobs = load.jobs / (time.time() - began_at)
        slurm.submit(SLEEP, f"--nodes={load.nodes}", "--exclusive")
        list(pool.map(submit, range(load.deep)))
        deep_at = time.time()
        list(pool.map(submit, range(load.deep)))
        submits = load.deep / (time.time() - deep_at)
    slurm.run("scancel", "--user=root")
    slurm.drain(DEADLINE_SECONDS)
    return Figures(jobs, submits, stranded)


def _program_seconds(slurm: Slurm) -> float:
    """Returns the time that sbatch takes without contacting the controller."""
    began_at = time.perf_counter()
    for _ in range(20):
        slurm.run("sbatch", "--version")
    return (time.perf_counter() - began_at) / 20


def _show(name: str, figures: Figures) -> None:
    print(
        f"{name:34} {figures.jobs_per_second:6.1f} jobs a second, {figures.stranded} stranded; "
        f"{figures.submits_per_second:6.1f} submits a second into the deep queue",
        flush=True,
    )


def _try_slurm(load: Load, parameters: str, name: str) -> Figures | None:
    """Measures Slurm; None when that failed, which is printed."""
    try:
        with running_slurm(load.nodes, load.slots, parameters) as slurm:
            figures = measure_slurm(load, slurm)
            _show(f"{slurm.version}, {name}", figures)
            program_seconds = _program_seconds(slurm)
    except (SlurmMissing, TimeoutError, subprocess.SubprocessError) as error:
        print(f"slurm, {name}: not measured: {error}", flush=True)
        return None
    print(f"  of which starting sbatch itself takes {program_seconds * 1e3:.1f} ms a submit", flush=True)
    return figures


def _summarise(name: str, runs: Sequence[Figures]) -> Figures:
    """Prints the medians, and returns them with the sum of all stranded jobs."""
    jobs = summarise([figures.jobs_per_second for figures in runs])
    submits = summarise([figures.submits_per_second for figures in runs])
    stranded = sum(figures.stranded for figures in runs)
    print(
        f"{name} {jobs.count} runs: median {jobs.p50:.1f} jobs a second ({jobs.minimum:.1f} to {jobs.maximum:.1f}), "
        f"{stranded} stranded; {submits.p50:.1f} submits a second "
        f"({submits.minimum:.1f} to {submits.maximum:.1f})"
    )
    return Figures(jobs.p50, submits.p50, stranded)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--slots", type=int, nargs="+", default=[4, 32, 64], help="of each node, for each size")
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--deep", type=int, default=1000)
    parser.add_argument("--no-slurm", action="store_true")
    arguments = parser.parse_args()
    print(describe_machine())
    loads = [Load(arguments.nodes, slots, arguments.jobs, arguments.deep) for slots in arguments.slots]
    has_slurm = not arguments.no_slurm
    if has_slurm:
        _try_slurm(loads[0], "", f"as it comes, {loads[0].total_slots} slots")
    is_enough = [_measure_size(load, arguments.runs, has_slurm) for load in loads]
    return 0 if all(is_enough) else 1


def _measure_size(load: Load, num_runs: int, has_slurm: bool) -> bool:
    """Prints the figures of both with so many slots; returns whether ours meet the targets."""
    size = f"{load.total_slots} slots"
    ours, theirs = list[Figures](), list[Figures]()
    for _ in range(num_runs):
        ours.append(measure_gangline(load))
        _show(f"gangline, {size}", ours[-1])
        peer = _try_slurm(load, HIGH_THROUGHPUT, f"for high throughput, {size}") if has_slurm else None
        has_slurm = peer is not None
        theirs += [peer] if peer else []
    figures = _summarise(f"{size}: gangline", ours)
    submits = _summarise(f"{size}: slurm, tuned", theirs).submits_per_second if theirs else SUBMITS_PER_SECOND
    print(f"wanted: {JOBS_PER_SECOND:g} jobs a second, none stranded, and {submits:.1f} submits a second", flush=True)
    return figures.jobs_per_second >= JOBS_PER_SECOND and figures.submits_per_second >= submits and not figures.stranded


if __name__ == "__main__":
    run_benchmark(main)
