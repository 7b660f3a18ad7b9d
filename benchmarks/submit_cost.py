"""Where the processor time of a submit goes: client, gateway, scheduler, etcd.

The cluster is whole and real. All slots are taken and `--deep` experiments wait; then four clients submit as many more,
as in part 2 of throughput.py. For each run this prints the submits a second and, for each process, the milliseconds of
processor time for one submit. The latter stay the same while other programs load the machine. "driver" is this process,
which hands the work to the clients; "others" are the agents.

Run it with `python -m benchmarks.submit_cost`. The peer is in throughput.py.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.clients import config_json, connected_clients, submit_all
from benchmarks.cluster import running_cluster
from benchmarks.machine import describe_machine
from benchmarks.process import processor_seconds, run_benchmark
from benchmarks.statistic import summarise
from gangline.client.transfer.packing import pack_code
from gangline.local.layout import Layout
from gangline.local.process_table import load_table

NAMES = ("clients", "driver", "gateway", "scheduler", "etcd", "others")
NODES = 2
SETTLE_SECONDS = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=4, help="of each of two agents")
    parser.add_argument("--deep", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5, help="in one cluster, one after another; the queue grows")
    arguments = parser.parse_args()
    print(describe_machine())
    rows = measure(arguments.slots, arguments.deep, arguments.runs)
    medians = {name: summarise([row[name] for row in rows]).p50 for name in rows[0]}
    print(f"median: {_say(medians)}")


def measure(slots: int, deep: int, num_runs: int) -> list[dict[str, float]]:
    """For each run the submits a second, and for each process the milliseconds of a submit."""
    with tempfile.TemporaryDirectory() as folder, running_cluster(NODES, slots) as (client, data):
        Path(folder, "README").write_text("The command needs no code.\n")
        code = pack_code(Path(folder))
        client.upload_code(code)
        services = _services(data)
        with connected_clients() as pool:
            clients = [psutil.Process(pid) for pid in pool._processes]
            client.submit_experiment(config_json("blocker", "sleep 3600", NODES * slots), code.sha256)
            while client.get_cluster().num_slots_used < NODES * slots:
                time.sleep(0.1)
            submit_all(pool, [config_json(f"waiting-{number}", "true") for number in range(deep)], code.sha256)
            rows = []
            for run in range(num_runs):
                # Work that the submits before have left behind is not counted.
                time.sleep(SETTLE_SECONDS)
                configs = [config_json(f"measured-{run}-{number}", "true") for number in range(deep)]
                before, began_at = _used(services, clients), time.time()
                submit_all(pool, configs, code.sha256)
                seconds, after = time.time() - began_at, _used(services, clients)
                row = {name: (after[name] - before[name]) / deep * 1e3 for name in NAMES}
                rows.append({"submits": deep / seconds} | row)
                print(_say(rows[-1]), flush=True)
    return rows


def _services(data: Path) -> dict[str, psutil.Process]:
    table = load_table(Layout(data).processes)
    assert table is not None
    return {service.name: psutil.Process(service.pid) for service in table.services}


def _used(services: dict[str, psutil.Process], clients: list[psutil.Process]) -> dict[str, float]:
    """Processor seconds so far, by the names of the table."""
    used = dict.fromkeys(NAMES, 0.0)
    for name, process in services.items():
        used[name if name in NAMES else "others"] += processor_seconds(process)
    used["clients"] = sum(map(processor_seconds, clients))
    used["driver"] = processor_seconds(psutil.Process())
    return used


def _say(row: dict[str, float]) -> str:
    parts = "  ".join(f"{name} {row[name]:.2f}" for name in NAMES)
    total = sum(row[name] for name in NAMES)
    return f"{row['submits']:6.1f} submits a second; ms of processor time a submit: {parts}  sum {total:.2f}"


if __name__ == "__main__":
    run_benchmark(main)
