"""Measures the processor time that one trivial job costs each process of a cluster.

The cluster is whole and real, as in throughput.py. `--jobs` experiments of one slot whose command is `true` are
submitted by four clients at once, after as many slots' worth to warm everything up. Each line is the processor time
that a process and all that it has started used for them, in its code and in the kernel, divided by the jobs. It is the
figure to compare on a machine that does other things as well. Run it with `python -m benchmarks.job_cost`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.clients import config_json, connected_clients, submit_all
from benchmarks.cluster import running_cluster
from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from benchmarks.throughput import finish
from gangline.client.transfer.packing import pack_code
from gangline.local.layout import Layout
from gangline.local.process_table import load_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--agents", type=int, default=1)
    parser.add_argument("--slots", type=int, default=64, help="of each agent")
    arguments = parser.parse_args()
    print(describe_machine())
    with (
        tempfile.TemporaryDirectory() as folder,
        running_cluster(arguments.agents, arguments.slots) as (client, data),
        connected_clients() as pool,
    ):
        Path(folder, "README").write_text("The command needs no code.\n")
        code = pack_code(Path(folder))
        client.upload_code(code)

        def run(count: int) -> float:
            """Jobs a second."""
            began_at = time.time()
            ids = submit_all(pool, [config_json(f"job-{number}", "true") for number in range(count)], code.sha256)
            stranded, ended_at = finish(client, ids)
            assert not stranded, f"{stranded} jobs have not completed"
            return count / (ended_at - began_at)

        run(2 * arguments.agents * arguments.slots)
        for _ in range(arguments.runs):
            before = _used_seconds(data)
            rate = run(arguments.jobs)
            after = _used_seconds(data)
            cost = {name: (after[name] - before[name]) * 1e3 / arguments.jobs for name in after}
            parts = ", ".join(f"{name} {milliseconds:.1f}" for name, milliseconds in cost.items())
            print(
                f"{rate:5.1f} jobs a second; {sum(cost.values()):5.1f} ms of processor time each: {parts}", flush=True
            )


def _used_seconds(data: Path) -> dict[str, float]:
    """By kind of process, since it was started."""
    seconds_by_kind: dict[str, float] = {}
    table = load_table(Layout(data).processes)
    assert table is not None
    for service in table.services:
        process = psutil.Process(service.pid)
        seconds_by_kind[service.kind] = seconds_by_kind.get(service.kind, 0.0) + sum(process.cpu_times()[:2])
        for child in process.children():
            kind = "ranks" if any("rank-template" in word for word in child.cmdline()) else "runners"
            seconds_by_kind[kind] = seconds_by_kind.get(kind, 0.0) + _of_family(child)
    clients = [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]
    seconds_by_kind["clients"] = sum(_of_family(child) for child in clients)
    return seconds_by_kind


def _of_family(process: psutil.Process) -> float:
    """Returns the processor time of the process and of all its descendants, ended or not."""
    seconds = 0.0
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            seconds += sum(each.cpu_times()[:4])
    return seconds


if __name__ == "__main__":
    run_benchmark(main)
