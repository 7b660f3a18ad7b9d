"""Measures the cost of a training step under Gangline, beside the same model in a plain torchrun loop.

Both trainings are up at once and take turns, a block of 100 steps each, so that both run on the same machine in the
same state. Both read their data record by record with torch's loader. Every run starts both anew (contest.py explains
why). The number of runs is the one that brings the 95 % interval of the ratio within 2 %, at least five and at most
--runs. Processor time of all ranks is counted beside the wall clock. So is that of all other processes of a side: in
its own blocks, and in the blocks of both sides, because some work for a block comes a second later. They are Gangline's
scheduler, etcd, gateway, agent and runner, and the launcher of torchrun. Run it with `python -m benchmarks.overhead`.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.cluster import running_cluster
from benchmarks.contest import HALF_WIDTH, WARM_UP_ROUNDS, Contest
from benchmarks.machine import describe_machine
from benchmarks.process import end_process, processor_seconds, run_benchmark, torchrun
from benchmarks.statistic import summarise
from benchmarks.turnstile import Side, Turnstile
from gangline.client import Client
from gangline.local.layout import Layout
from gangline.local.process_table import load_table

WORKLOAD = Path(__file__).parent / "workload"
TORCHRUN = torchrun(2)
STEPS_PER_BLOCK = 100
# More than any run takes: the benchmark ends both trainings.
MOST_STEPS = 1_000_000
CONFIG = """
name: benchmark-overhead
entrypoint: trial:BenchmarkTrial
hyperparameters: {{global_batch_size: 64, turnstile: "{turnstile}", steps_per_block: {steps}, by_record: true}}
searcher: {{name: single, metric: validation_loss, max_length: {{batches: {most}}}}}
resources: {{slots_per_trial: 2}}
scheduling_unit: {steps}
max_restarts: 0
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    print(describe_machine())
    contest = Contest(STEPS_PER_BLOCK)
    steps = STEPS_PER_BLOCK * arguments.rounds
    beside: dict[str, list[float]] = {"gangline": [], "torchrun": []}
    beside_both: dict[str, list[float]] = {"gangline": [], "torchrun": []}
    with running_cluster(agents=1, slots=2) as (client, data):
        for _ in range(arguments.runs):
            with _both(client) as (sides, torchrun):
                table = load_table(Layout(data).processes)
                assert table is not None
                roots = {"gangline": table.supervisor.pid, "torchrun": torchrun}
                for name, pid in roots.items():
                    sides[name].find_beside = functools.partial(_seconds_beside, pid, sides[name].pids)
                before = {name: side.find_beside() for name, side in sides.items()}
                contest.run(sides, arguments.rounds)
                for name, side in sides.items():
                    beside[name].append(sum(side.beside_seconds) / steps)
                    all_steps = steps + STEPS_PER_BLOCK * WARM_UP_ROUNDS
                    beside_both[name].append((side.find_beside() - before[name]) / all_steps)
            if contest.is_enough():
                break
    contest.print_steps()
    contest.print_runs("gangline", "torchrun")
    wall = contest.wall_ratio("gangline", "torchrun")
    print(f"step time, gangline / torchrun: {wall}")
    print(f"processor time of the ranks:    {contest.cpu_ratio('gangline', 'torchrun')}")
    for where, by_name in (("its own blocks", beside), ("all blocks", beside_both)):
        for name, seconds in by_name.items():
            summary = summarise([sample * 1000 for sample in seconds])
            print(
                f"{name}'s other processes: processor time in {where}, a step of its own p50 {summary.p50:.3f} ms "
                f"({summary.minimum:.3f} to {summary.maximum:.3f})"
            )
    if wall.half_width > HALF_WIDTH:
        print(f"the interval of the step time is wider than ± {HALF_WIDTH:.0%}; give more --runs")


def _seconds_beside(root: int, ranks: Collection[int]) -> float:
    """Returns the processor time so far of this process and all living processes below it, without the ranks."""
    process = psutil.Process(root)
    other_processes = [member for member in (process, *process.children(recursive=True)) if member.pid not in ranks]
    return sum(map(processor_seconds, other_processes))


@contextmanager
def _both(client: Client) -> Iterator[tuple[dict[str, Side], int]]:
    """Starts both trainings, each waiting before its first block, and yields them with the pid of torchrun; they are
    ended with the context."""
    with tempfile.TemporaryDirectory(prefix="gl-") as folder:
        turnstile = Turnstile(Path(folder, "turn"), deadline_seconds=60)
        config = CONFIG.format(turnstile=turnstile.path, steps=STEPS_PER_BLOCK, most=MOST_STEPS)
        created = client.create_experiment(config, WORKLOAD)
        options = ["--turnstile", str(turnstile.path), "--blocks", str(MOST_STEPS // STEPS_PER_BLOCK)]
        bare = [*TORCHRUN, "bare.py", "overhead", "--by-record", *options]
        peer = subprocess.Popen(bare, cwd=WORKLOAD, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield dict(turnstile.admit() for _ in range(2)), peer.pid
        finally:
            end_process(peer)
            client.kill_experiment(created.experiment.id)
            client.wait_experiment(created.experiment.id)
            turnstile.close()


if __name__ == "__main__":
    run_benchmark(main)
