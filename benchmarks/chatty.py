"""Counts lost leases and lost lines of a trial that prints without a pause while many processes use the processors.

Two ranks print 10,000 lines a second each for half a minute, or as many as the runner takes where the processors are
too busy for that. Each busy process has a session of its own, among which the kernel divides the processors. All
services of the cluster share the machine with them. Every line has a number, so a lost one and a repeated one are
noticed. Peers have no leases of this kind. Run it with `python -m benchmarks.chatty`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cluster import running_cluster
from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from gangline.client import Client
from gangline.domain.state import Outcome
from gangline.domain.view import ExperimentView

RANKS = 2
# The program of each busy process.
BUSY = "while True: pass"
# Limit for the lines that wait on the disk of the agent after the end.
DELIVERY_SECONDS = 300.0
SCRIPT = """
import time
from gangline import core, get_cluster_info
settings = get_cluster_info().trial.hparams
with core.init() as context:
    rank, number, began_at = context.distributed.rank, 0, time.monotonic()
    while (passed := time.monotonic() - began_at) < settings["seconds"]:
        while number < passed * settings["rate"]:
            print(f"line {number} of rank {rank}, loss 0.1234, 17 samples/s, learning rate 0.001")
            number += 1
        time.sleep(0.001)
    print("printed", number)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=int, default=60, help="processes that compute meanwhile")
    parser.add_argument("--seconds", type=float, default=30.0, help="for how long the ranks print")
    parser.add_argument("--rate", type=int, default=10_000, help="lines a second of each of the two ranks")
    arguments = parser.parse_args()
    print(describe_machine())
    config = {
        "name": "chatty",
        "entrypoint": "python3 -m gangline.launch.torch_distributed train.py",
        "hyperparameters": {"seconds": arguments.seconds, "rate": arguments.rate},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
        "resources": {"slots_per_trial": RANKS},
        "max_restarts": 0,
    }
    with running_cluster(agents=1, slots=RANKS) as (client, _), tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(SCRIPT)
        number = client.create_experiment(json.dumps(config), folder).experiment.id
        # The start is not what is measured here.
        next(client.stream_logs(number, follow=True))
        with busy_machine(arguments.busy):
            view = client.wait_experiment(number)
            print(f"load average {os.getloadavg()[0]:.0f} beside {arguments.busy} busy processes")
        print_counts(client, view)


@contextmanager
def busy_machine(num_processes: int) -> Iterator[None]:
    crowd = [subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True) for _ in range(num_processes)]
    try:
        yield
    finally:
        for process in crowd:
            process.kill()
            process.wait()


def print_counts(client: Client, view: ExperimentView) -> None:
    """Prints the outcome, and the lines that are missing or stored twice. The last ones may still be delivered. An
    attempt that loses its lease fails, and is not repeated."""
    number = view.experiment.id
    print(f"{view.experiment.outcome}: {view.trials[0].trial.reason}")
    until_at = time.monotonic() + (DELIVERY_SECONDS if view.experiment.outcome is Outcome.COMPLETED else 0.0)
    while len(printed := _printed(client, number)) < RANKS and time.monotonic() < until_at:
        time.sleep(1.0)
    for rank, wanted in sorted(printed.items()):
        lines = client.stream_logs(number, ranks=[rank], pattern="^line ")
        numbers = Counter(int(entry.text.split()[1]) for entry in lines)
        num_lost = sum(each not in numbers for each in range(wanted))
        print(f"rank {rank}: {wanted} lines printed, {num_lost} lost, {numbers.total() - len(numbers)} stored twice")


def _printed(client: Client, number: int) -> dict[int, int]:
    """Returns the number of lines that each rank has printed, as far as its last line has arrived."""
    last = client.stream_logs(number, pattern="^printed ")
    return {entry.rank: int(entry.text.split()[1]) for entry in last if entry.rank is not None}


if __name__ == "__main__":
    run_benchmark(main)
