"""Measures the processor time that a gateway takes for the routes of the page, on a whole cluster at full size.

The records of `--experiments` ended experiments with one trial each, and one with `--trials` trials, are written into
etcd. Trials have `--points` reports of a metric, or a hundredth of that, and a log of `--lines` lines, written into the
gateway's database. Each route is called `--calls` times by one client, over HTTP; the first call is printed by itself,
because it reads what later ones find in memory. At last, `--streams` clients follow the experiments while one of them
changes five times a second.

Run it with `python -m benchmarks.api`. The figures are those of the gateway's process, in the kernel too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import sqlalchemy as sa

from benchmarks.cluster import running_cluster
from benchmarks.listing import experiment_of, fill_state, headers_of, http_address, wait_for_mirror
from benchmarks.machine import describe_machine
from benchmarks.process import processor_seconds, run_benchmark
from benchmarks.statistic import summarise
from gangline.domain.history import LogLine, MetricsPoint
from gangline.local.layout import Layout
from gangline.local.process_table import load_table
from gangline.protocol import wire
from services.common import keys
from services.common.etcd import EtcdClient, EtcdSettings, Put
from services.gateway.history.condense import condense_next
from services.gateway.history.metric_block import BLOCK_REPORTS
from services.gateway.history.store import store_batches
from services.gateway.mirror.ingest_record import IngestBatch, IngestRecord

STREAM_SECONDS = 20.0
CHANGE_SECONDS = 0.2
PART = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, number in (
        ("experiments", 10_000), ("trials", 10_000), ("points", 1_000_000), ("lines", 1_000_000), ("calls", 20),
        ("streams", 50),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=number)
    arguments = parser.parse_args()
    print(describe_machine())
    with running_cluster(agents=1, slots=1) as (client, data):
        asyncio.run(fill_state(data, arguments.experiments, arguments.trials))
        _fill_history(data, arguments.points, arguments.lines)
        big_id = arguments.experiments + 1
        wait_for_mirror(client, big_id, arguments.trials)
        gateway = _gateway(data)
        with httpx.Client(base_url=http_address(data), headers=headers_of(client), timeout=120) as http:
            for route in _routes(big_id):
                _measure(gateway, http, route, arguments.calls)
        used = asyncio.run(_follow(data, gateway, headers_of(client), arguments.streams))
        print(f"{arguments.streams} streams, 5 changes a second: {100 * used:.1f} % of a core")


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
    gateway: psutil.Process, http: httpx.Client, route: tuple[str, str, dict[str, Any]], num_calls: int
) -> None:
    name, path, params = route
    used: list[float] = []
    size = 0
    for number in range(num_calls + 1):
        # Another filter each time, so that no result is kept from the call before.
        fresh = {"filter": f"{params['filter']} or id = -{number + 1}"} if "filter" in params else {}
        before = processor_seconds(gateway)
        answer = http.get(f"/api/v1/{path}", params={**params, **fresh}).raise_for_status()
        used.append(1000 * (processor_seconds(gateway) - before))
        size = len(answer.content)
    # The kernel counts processor time in steps of 10 ms.
    later = sum(used[1:]) / num_calls
    print(f"{name:38} first {used[0]:7.1f} ms; then {later:6.1f} ms on average; {size / 1000:8.1f} kB", flush=True)


def _gateway(data: Path) -> psutil.Process:
    table = load_table(Layout(data).processes)
    gateway = table.find("gateway") if table is not None else None
    assert gateway is not None, "the cluster runs"
    return psutil.Process(gateway.pid)


def _fill_history(data: Path, num_points: int, num_lines: int) -> None:
    engine = sa.create_engine(f"sqlite:///{data}/gateway/gateway.db")
    _store_reports(engine, 1, num_points)
    for number in range(2, 102):
        _store_reports(engine, number, max(1, num_points // 100))
    for start in range(1, num_lines + 1, PART):
        records = tuple(
            IngestRecord(n, 1e9 + n, LogLine(n % 8, "agent-1", "stdout", f"line {n} of the training, with its loss"))
            for n in range(start, min(start + PART, num_lines + 1))
        )
        store_batches(engine, [IngestBatch("1.1.1/1", 1, "1.1", records)], 1e9)
    engine.dispose()


def _store_reports(engine: sa.Engine, number: int, num_points: int) -> None:
    for start in range(1, num_points + 1, PART):
        records = tuple(
            IngestRecord(n, 1e9 + n, MetricsPoint("training", n, {"loss": math.sin(n) + number}))
            for n in range(start, min(start + PART, num_points + 1))
        )
        store_batches(engine, [IngestBatch(f"{number}.1.1/0", number, f"{number}.1", records)], 1e9)
        while condense_next(engine, f"{number}.1", "training") == BLOCK_REPORTS:
            pass


async def _follow(data: Path, gateway: psutil.Process, headers: dict[str, str], num_streams: int) -> float:
    """Returns the share of a core that the gateway uses, and prints how late the changes arrive."""
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
        before, began = processor_seconds(gateway), time.monotonic()
        while time.monotonic() - began < STREAM_SECONDS:
            changed = replace(experiment_of(5), name=f"changed-{time.time()}")
            await etcd.commit([Put(keys.experiment(5), wire.encode(changed))])
            await asyncio.sleep(CHANGE_SECONDS)
        used = (processor_seconds(gateway) - before) / (time.monotonic() - began)
    for task in clients:
        task.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    summary = summarise(delays)
    print(f"a change is at the clients after {summary.p50:.3f} s, p95 {summary.p95:.3f} s, {len(delays)} events")
    return used


if __name__ == "__main__":
    run_benchmark(main)
