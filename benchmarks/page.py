"""Measures the page in Chromium: what it weighs, and how long the reader waits.

The clusters are whole and real; the records of ended experiments are written into their etcd, and long histories into
the gateway's database. Times are taken in the page itself, from the order or the event to the frame that shows what the
reader waits for. Each run opens windows without a cache. The parts, each of which `--part` runs alone:

- list: 10,000 experiments: the code before the first paint, the first view, further rows, sorting, filtering.
- charts: 100 curves of 10,000 points each, with the frames that are left out while they are panned; 1,000,000 points;
  a log of 1,000,000 lines.
- live: reports of a rank, as 50 windows show them, and what these cost the gateway.
- mlflow: MLflow's page beside ours, with the same 1,000 runs of 20 metrics.

Run it with `python -m benchmarks.page`, which takes a quarter of an hour. It prints the median and the spread of the
runs, and exits with 1 when a median misses its target. Chromium is Debian's.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path

from playwright.sync_api import Browser

from benchmarks.cluster import find_gateway, running_cluster
from benchmarks.listing import MAX_PUTS, http_address, trial_of, wait_for_mirror
from benchmarks.machine import describe_machine
from benchmarks.page_part import charts, listing, live, mlflow
from benchmarks.page_part.window import Figure, running_browser, sign_in
from benchmarks.peer import PeersMissing, peer_python
from benchmarks.process import run_benchmark
from benchmarks.statistic import summarise
from benchmarks.stored_history import gateway_database
from gangline.protocol import wire
from services.common import keys
from services.common.etcd import EtcdClient, EtcdSettings, Put

PARTS = ("list", "charts", "live", "mlflow")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", help="measures only this part; may be repeated")
    for name, number in (
        ("runs", 5), ("experiments", 10_000), ("trials", 100), ("curve-points", 10_000), ("points", 1_000_000),
        ("lines", 1_000_000), ("readers", 50), ("windows", 3), ("mlflow-runs", 1000),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--report-every", type=float, default=0.5, help="seconds between two reports of the live trial")
    arguments = parser.parse_args()
    if arguments.experiments < listing.RARE_EVERY:
        parser.error(f"--experiments is at least {listing.RARE_EVERY}: one in so many has the label that is filtered")
    if not 1 <= arguments.windows <= arguments.readers:
        parser.error("--windows is at least 1 and at most --readers")
    if arguments.mlflow_runs < mlflow.NUM_COMPARED:
        parser.error(f"--mlflow-runs is at least {mlflow.NUM_COMPARED}: so many are compared")
    parts = arguments.part or PARTS
    print(describe_machine())
    is_missed = False
    with running_browser() as browser:
        print(f"Chromium {browser.version}, {arguments.runs} runs", flush=True)
        if {"list", "charts", "live"} & set(parts):
            is_missed |= _measure_ours(browser, arguments, parts)
        if "mlflow" in parts:
            is_missed |= _measure_mlflow(browser, arguments)
    sys.exit(is_missed)


def _measure_ours(browser: Browser, arguments: argparse.Namespace, parts: Sequence[str]) -> bool:
    number, num_runs = arguments.experiments, arguments.runs
    search_id, long_id = number - 1, number - 2
    places = charts.Histories(
        search_id, long_id, arguments.trials, arguments.curve_points, arguments.points, arguments.lines
    )
    is_missed = False
    with running_cluster(agents=1, slots=1) as (client, data):
        trials = (
            Put(keys.trial(f"{search_id}.{n}"), wire.encode(trial_of(search_id, n)))
            for n in range(2, places.trials + 1)
        )
        _write(data, chain(trials, listing.records(number)))
        wait_for_mirror(client, number, 1)
        address = http_address(data)
        state = sign_in(browser, address, client.login.token)
        if "list" in parts:
            print(f"{number:,} experiments", flush=True)
            is_missed |= _show(listing.FIGURES, [listing.run(browser, address, state, number) for _ in range(num_runs)])
        if "charts" in parts:
            print(
                f"{places.trials} trials of {places.curve_points:,} points; {places.points:,} points; "
                f"{places.lines:,} lines", flush=True,
            )  # fmt: skip
            with gateway_database(data) as engine:
                charts.fill(engine, places)
            runs = [charts.run(browser, address, state, places) for _ in range(num_runs)]
            is_missed |= _show(charts.FIGURES, runs)
        if "live" in parts:
            num_windows, num_streams = arguments.windows, arguments.readers - arguments.windows
            print(
                f"{num_windows} windows and {num_streams} clients that read the stream of such a window; a report each "
                f"{arguments.report_every:g} s", flush=True,
            )  # fmt: skip
            runs = live.run_all(
                browser, client, address, state, find_gateway(data),
                num_runs=num_runs, num_windows=num_windows, num_streams=num_streams, every=arguments.report_every,
            )  # fmt: skip
            is_missed |= _show(live.FIGURES, runs)
    return is_missed


def _measure_mlflow(browser: Browser, arguments: argparse.Namespace) -> bool:
    number = arguments.mlflow_runs
    print(f"{number:,} runs, beside {', '.join(mlflow.PACKAGES)}", flush=True)
    try:
        with (
            peer_python(mlflow.PACKAGES) as python,
            mlflow.running_mlflow(python, number) as theirs,
            running_cluster(agents=1, slots=1) as (client, data),
        ):
            _write(data, mlflow.records(number))
            wait_for_mirror(client, number, 1)
            with gateway_database(data) as engine:
                mlflow.fill(engine, number)
            address = http_address(data)
            ours = mlflow.our_site(address, sign_in(browser, address, client.login.token), number)
            mlflow.run(browser, (ours, theirs))
            return _show(mlflow.FIGURES, [mlflow.run(browser, (ours, theirs)) for _ in range(arguments.runs)])
    except PeersMissing as reason:
        print(f"MLflow: not measured: {reason}")
        return False


def _write(data: Path, puts: Iterable[Put]) -> None:
    async def write() -> None:
        async with EtcdClient(EtcdSettings(endpoints=(f"unix:{data}/etcd-client:0",))) as etcd:
            rest = iter(puts)
            while part := list(islice(rest, MAX_PUTS)):
                await etcd.commit(part)

    # While Playwright runs, this thread has an event loop already.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, write()).result()


def _show(figures: Sequence[Figure], runs: Sequence[tuple[float, ...]]) -> bool:
    """Prints the figures of all runs; returns whether the median of one misses its target."""
    is_missed = False
    for figure, values in zip(figures, zip(*runs, strict=True), strict=True):
        summary = summarise(values)
        is_met = figure.most is None or summary.p50 <= figure.most
        is_missed |= not is_met
        target = "" if figure.most is None else f", at most {figure.most:.0f}: {'yes' if is_met else 'NO'}"
        print(
            f"{figure.name:54} median {summary.p50:8.1f} {figure.unit} ({summary.minimum:.1f} to "
            f"{summary.maximum:.1f}){target}",
            flush=True,
        )
    return is_missed


if __name__ == "__main__":
    run_benchmark(main)
