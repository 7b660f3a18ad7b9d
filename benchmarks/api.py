"""Measures the processor time that a gateway takes for the routes of the page, on a whole cluster at full size.

The records of `--experiments` ended experiments with one trial each, and one with `--trials` trials, are written into
etcd. Trials have `--points` reports of a metric, or a hundredth of that, and a log of `--lines` lines, written into the
gateway's database. One client calls each route over HTTP. The first call is printed by itself, because it reads what
later ones find in memory. Then come `--runs` runs of `--calls` calls each; the median of their averages is printed with
the least and the greatest one. At last, `--streams` clients follow the experiments while one of them changes five times
a second, in as many runs.

Run it with `python -m benchmarks.api`, which takes some minutes. The figures are those of the gateway's process, in the
kernel too, so other work on the machine changes them little.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.cluster import find_gateway, running_cluster
from benchmarks.listing import experiment_of, fill_state, headers_of, http_address, wait_for_mirror
from benchmarks.machine import describe_machine
from benchmarks.process import processor_seconds, run_benchmark
from benchmarks.statistic import summarise
from benchmarks.stored_history import gateway_database, store_lines, store_reports
from gangline.protocol import wire
from services.common import keys
from services.common.etcd import EtcdClient, EtcdSettings, Put

STREAM_SECONDS = 5.0
CHANGE_SECONDS = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, number in (
        ("experiments", 10_000), ("trials", 10_000), ("points", 1_000_000), ("lines", 1_000_000), ("runs", 5),
        ("calls", 10), ("streams", 50),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=number)
    arguments = parser.parse_args()
    print(describe_machine())
    with running_cluster(agents=1, slots=1) as (client, data):
        asyncio.run(fill_state(data, arguments.experiments, arguments.trials))
        _fill_history(data, arguments.points, arguments.lines)
        big_id = arguments.experiments + 1
        wait_for_mirror(client, big_id, arguments.trials)
        gateway = find_gateway(data)
        with httpx.Client(base_url=http_address(data), headers=headers_of(client), timeout=120) as http:
            for route in _routes(big_id):
                _measure(gateway, http, route, arguments.runs, arguments.calls)
        used = asyncio.run(_follow(data, gateway, headers_of(client), arguments.streams, arguments.runs))
        print(f"{arguments.streams} streams, 5 changes a second: {_show(used, '% of a core')}")


def _routes(big_id: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    table = "tables/experiments"
    yield "first 100 experiments", table, {}
    yield "rows 5,000 to 5,100", table, {"offset": 5000}
    yield "filter by a hyperparameter, two keys", table, {
        "filter": "hp.learning_rate < 1 and (owner = admin or labels = rare)", "sort": "-best,name",
    }  # fmt: skip
    yield "filter by the configuration", table, {"filter": "pool = default and metric = accuracy"}
    yield "10 patterns", table, {"filter": " or ".join(f'name ~ "x{n}$"' for n in range(10))}
    yield "50 comparisons, 5 keys", table, {
        "filter": " or ".join(f"hp.learning_rate = {n}" for n in range(50)), "sort": "best,name,id,owner,-archived",
    }  # fmt: skip
    yield "names of its fields", f"{table}/fields", {"search": "hp."}
    yield "first 100 of 10,000 trials, by best", "tables/trials", {"experimentId": big_id, "sort": "-best"}
    yield "one metric, whole, 1,000 points", "metrics/series", {
        "trialIds": "1.1", "metrics": "loss", "maxDatapoints": 1000,
    }  # fmt: skip
    yield "one metric, a tenth of it", "metrics/series", {
        "trialIds": "1.1", "metrics": "loss", "maxDatapoints": 1000, "fromBatch": 500_000, "toBatch": 600_000,
    }  # fmt: skip
    yield "one metric of 100 trials", "metrics/series", {
        "trialIds": [f"{n}.1" for n in range(2, 102)], "metrics": "loss", "maxDatapoints": 500,
    }  # fmt: skip
    yield "names of metrics", "metrics/names", {"trialIds": "1.1"}
    yield "last 1,000 lines", "trials/1.1/logs", {"beforeId": 2**62}
    yield "1,000 lines before one in the middle", "trials/1.1/logs", {"beforeId": 500_000}
    yield "the line of a time", "trials/1.1/logs/place", {"time": "2001-09-12T12:00:00Z"}
    yield "a rare pattern, backwards", "trials/1.1/logs", {
        "beforeId": 2**62, "searchText": "line 990000", "limit": 1,
    }  # fmt: skip


def _measure(
    gateway: psutil.Process,
    http: httpx.Client,
    route: tuple[str, str, dict[str, Any]],
    num_runs: int,
    num_calls: int,
) -> None:
    name, path, params = route
    numbers = itertools.count(1)

    def call(times: int) -> tuple[float, int]:
        """Returns the milliseconds of a call, on average, and the bytes of an answer."""
        before, size = processor_seconds(gateway), 0
        for _ in range(times):
            # Another filter each time, so that no result is kept from the call before.
            fresh = {"filter": f"{params['filter']} or id = -{next(numbers)}"} if "filter" in params else {}
            answer = http.get(f"/api/v1/{path}", params={**params, **fresh}).raise_for_status()
            size = len(answer.content)
        # The kernel counts processor time in steps of 10 ms, so a run is measured as a whole.
        return 1000 * (processor_seconds(gateway) - before) / times, size

    first, size = call(1)
    later = _show([call(num_calls)[0] for _ in range(num_runs)], "ms")
    print(f"{name:38} first {first:6.0f} ms; then {later}; {size / 1000:8.1f} kB", flush=True)


def _show(values: Sequence[float], unit: str) -> str:
    summary = summarise(values)
    return f"median {summary.p50:6.1f} {unit} ({summary.minimum:.1f} to {summary.maximum:.1f}, {summary.count} runs)"


def _fill_history(data: Path, num_points: int, num_lines: int) -> None:
    with gateway_database(data) as engine:
        for number in range(1, 102):
            num_reports = num_points if number == 1 else max(1, num_points // 100)
            store_reports(engine, f"{number}.1", "training", num_reports, lambda batch: {"loss": math.sin(batch)})
        store_lines(engine, "1.1", num_lines)


async def _follow(
    data: Path, gateway: psutil.Process, headers: dict[str, str], num_streams: int, num_runs: int
) -> list[float]:
    """Returns the percentage of a core that the gateway uses in each run, and prints how late the changes arrive."""
    delays: list[float] = []
    ready = asyncio.Semaphore(0)

    async def follow() -> None:
        params = {"experiments": "true", "agents": "true", "queue": "true"}
        async with (
            httpx.AsyncClient(base_url=http_address(data), headers=headers, timeout=60) as http,
            http.stream("GET", "/api/v1/stream", params=params) as answer,
        ):
            async for line in answer.aiter_lines():
                if line == "event: open":
                    ready.release()
                if line.startswith("data: ") and '"changed-' in line:
                    rows = json.loads(line[6:])["experiments"]["rows"]
                    delays.append(time.time() - max(float(row["name"].partition("-")[2]) for row in rows))

    clients = [asyncio.create_task(follow()) for _ in range(num_streams)]
    for _ in clients:
        await ready.acquire()
    async with EtcdClient(EtcdSettings(endpoints=(f"unix:{data}/etcd-client:0",))) as etcd:
        await asyncio.sleep(2)
        used: list[float] = []
        for _ in range(num_runs):
            before, began = processor_seconds(gateway), time.monotonic()
            while time.monotonic() - began < STREAM_SECONDS:
                changed = replace(experiment_of(5), name=f"changed-{time.time()}")
                await etcd.commit([Put(keys.experiment(5), wire.encode(changed))])
                await asyncio.sleep(CHANGE_SECONDS)
            used.append(100 * (processor_seconds(gateway) - before) / (time.monotonic() - began))
    for task in clients:
        task.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    summary = summarise(delays)
    print(f"a change is at the clients after {summary.p50:.3f} s, p95 {summary.p95:.3f} s, {len(delays)} events")
    return used


if __name__ == "__main__":
    run_benchmark(main)
