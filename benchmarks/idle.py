"""Measures the cost of each service of an idle cluster: resident memory and processor time over a minute, five times.

The cluster has two agents of two slots, no experiment, and no callers. Memory is the proportional set size, so that
shared pages are counted once in the sum. The peer is a bare process that has imported torch, which every rank of a
training needs anyway. Run it with `python -m benchmarks.idle`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.cluster import running_cluster
from benchmarks.machine import describe_machine
from benchmarks.process import processor_seconds, run_benchmark
from gangline.local.layout import Layout
from gangline.local.process_table import load_table

# The peer's program: torch as a rank imports it.
BARE = "import sys, torch, torch._dynamo; print('up', flush=True); sys.stdin.read()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each of the five samples lasts")
    arguments = parser.parse_args()
    print(describe_machine())
    with running_cluster(agents=2, slots=2) as (_, data):
        bare = subprocess.Popen([sys.executable, "-c", BARE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert bare.stdout
        bare.stdout.readline()
        processes = {**_find_processes(data), "peer: import torch": psutil.Process(bare.pid)}
        _wait_until_quiet(processes)
        samples = [_sample(processes, arguments.seconds) for _ in range(5)]
        bare.communicate()
    for name in processes:
        cpu = [sample[name][0] for sample in samples]
        memory = [sample[name][1] for sample in samples]
        print(
            f"{name:32} memory {statistics.median(memory):7.1f} MiB   processor {statistics.median(cpu) * 100:6.3f} % "
            f"of a core ({min(cpu) * 100:.3f} to {max(cpu) * 100:.3f})"
        )


def _find_processes(data: Path) -> dict[str, psutil.Process]:
    """Returns every process that `gangline up` started, by name, and the processes below each."""
    process_by_name: dict[str, psutil.Process] = {}
    table = load_table(Layout(data).processes)
    assert table is not None
    process_by_name["supervisor"] = psutil.Process(table.supervisor.pid)
    for service in table.services:
        process = psutil.Process(service.pid)
        process_by_name[service.name] = process
        for child in process.children(recursive=True):
            process_by_name[f"{service.name}, {_warmth(child)}"] = child
    return process_by_name


def _warmth(child: psutil.Process) -> str:
    """Returns which of an agent's two warm processes this is."""
    return "warm for ranks" if any("rank-template" in word for word in child.cmdline()) else "warm for runners"


def _wait_until_quiet(processes: dict[str, psutil.Process]) -> None:
    """Waits until imports have ended: below 5 % of a core a process over two seconds; a minute at most."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if sum(cpu for cpu, _ in _sample(processes, 2.0).values()) < 0.05 * len(processes):
            return


def _sample(processes: dict[str, psutil.Process], seconds: float) -> dict[str, tuple[float, float]]:
    """Returns the cores used over so many seconds, and the MiB of memory at their end."""
    before = {name: processor_seconds(process) for name, process in processes.items()}
    time.sleep(seconds)
    return {
        name: (
            (processor_seconds(process) - before[name]) / seconds,
            process.memory_full_info().pss / 2**20,
        )
        for name, process in processes.items()
    }


if __name__ == "__main__":
    run_benchmark(main)
