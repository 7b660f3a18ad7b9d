"""Measures how long a gateway takes for the first page of 10,000 experiments, and for one with 10,000 trials.

The cluster is whole and real. The records of ended experiments are written into its etcd, and the gateway mirrors them.
Each run sends `--calls` requests one after another, over HTTP and with the SDK, for each of these: the first page of
50, the first page of those with a label that one in a thousand has, and the experiment with `--trials` trials. It
prints the median and the 95th percentile.

Run it with `python -m benchmarks.listing`. It exits with 1 when the median of the runs' 95th percentiles is above the
target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx

from benchmarks.cluster import running_cluster
from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from benchmarks.statistic import summarise
from gangline.client import Client
from gangline.config import parse_config
from gangline.domain.experiment import Experiment, ExperimentFilter, Trial
from gangline.domain.state import Outcome, State
from gangline.local.layout import Layout
from gangline.protocol import wire
from services.common import keys
from services.common.etcd import EtcdClient, EtcdSettings, Put

TARGET_MS = 100.0
# Writes in one transaction of etcd, which allows 128.
MAX_PUTS = 100
MIRROR_SECONDS = 60.0
RARE = "rare"
CONFIG = """
name: digits-{number}
labels: [{labels}]
entrypoint: model_def:DigitsTrial
hyperparameters: {{global_batch_size: 64, learning_rate: 0.1}}
searcher: {{name: single, metric: accuracy, max_length: {{epochs: 3}}}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", type=int, default=10_000)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--calls", type=int, default=100)
    arguments = parser.parse_args()
    print(describe_machine())
    print(f"{arguments.experiments:,} experiments, one more with {arguments.trials:,} trials")
    with running_cluster(agents=1, slots=1) as (client, data):
        asyncio.run(fill_state(data, arguments.experiments, arguments.trials))
        big_id = arguments.experiments + 1
        wait_for_mirror(client, big_id, arguments.trials)
        is_missed = False
        with httpx.Client(base_url=http_address(data), headers=headers_of(client), timeout=60) as http:
            for name, call in _calls(client, http, big_id):
                is_missed |= _measure(name, call, arguments.runs, arguments.calls)
    sys.exit(is_missed)


def _calls(client: Client, http: httpx.Client, big_id: int) -> Iterator[tuple[str, Callable[[], object]]]:
    def get(path: str) -> Callable[[], object]:
        return lambda: http.get(f"/api/v1/{path}").raise_for_status()

    yield "first page of 50, HTTP", get("experiments?limit=50")
    yield "first page with a rare label, HTTP", get(f"experiments?limit=50&labels={RARE}")
    yield "first page of 50, SDK", lambda: client.list_progress(50)
    yield "first page with a rare label, SDK", lambda: client.list_progress(50, wanted=ExperimentFilter(labels=(RARE,)))
    yield f"experiment {big_id} with all trials, SDK", lambda: client.get_experiment(big_id)


def _measure(name: str, call: Callable[[], object], num_runs: int, num_calls: int) -> bool:
    """Prints one row; returns whether the target was missed."""
    call()
    runs = [summarise([_milliseconds(call) for _ in range(num_calls)]) for _ in range(num_runs)]
    p95 = summarise([run.p95 for run in runs])
    median = summarise([run.p50 for run in runs])
    verdict = "yes" if p95.p50 <= TARGET_MS else "NO"
    print(
        f"{name:38} median {median.p50:7.1f} ms; p95 {p95.p50:7.1f} ms ({p95.minimum:.1f} to {p95.maximum:.1f}), "
        f"at most {TARGET_MS:.0f}: {verdict}",
        flush=True,
    )
    return verdict == "NO"


def _milliseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began)


async def fill_state(data: Path, num_experiments: int, num_trials: int) -> None:
    async with EtcdClient(EtcdSettings(endpoints=(f"unix:{data}/etcd-client:0",))) as etcd:
        puts: list[Put] = []
        for number in range(1, num_experiments + 2):
            experiment = experiment_of(number)
            puts.append(Put(keys.experiment(number), wire.encode(experiment)))
            trials = num_trials if number > num_experiments else 1
            puts += [
                Put(keys.trial(f"{number}.{index}"), wire.encode(trial_of(number, index)))
                for index in range(1, trials + 1)
            ]
        for start in range(0, len(puts), MAX_PUTS):
            await etcd.commit(puts[start : start + MAX_PUTS])


def experiment_of(number: int) -> Experiment:
    labels = (RARE,) if number % 1000 == 0 else ()
    config, _ = parse_config(CONFIG.format(number=number, labels=", ".join(labels)))
    return Experiment(
        number,
        f"digits-{number}",
        "admin",
        config.model_dump_json(),
        "0" * 64,
        State.TERMINAL,
        Outcome.COMPLETED,
        created_at=1e9 + number,
        ended_at=1e9 + number + 60,
        labels=labels,
    )


def trial_of(experiment_id: int, number: int) -> Trial:
    return Trial(
        f"{experiment_id}.{number}",
        experiment_id,
        number,
        json.dumps({"global_batch_size": 64, "learning_rate": 0.1}),
        state=State.TERMINAL,
        outcome=Outcome.COMPLETED,
        batches_completed=1000,
        best_validation=0.9,
        created_at=1e9,
        ended_at=1e9 + 60,
    )


def wait_for_mirror(client: Client, experiment_id: int, num_trials: int) -> None:
    """Waits until the gateway has mirrored everything."""
    deadline = time.monotonic() + MIRROR_SECONDS
    while time.monotonic() < deadline:
        newest: Sequence[Experiment] = client.list_experiments(1)
        if newest and newest[0].id == experiment_id and len(client.get_experiment(experiment_id).trials) == num_trials:
            return
        time.sleep(0.2)
    raise SystemExit(f"the gateway has not mirrored everything after {MIRROR_SECONDS:g} s")


def http_address(data: Path) -> str:
    ready = json.loads(Layout(data).ready("gateway").read_text())
    return f"http://{ready['http']}"


def headers_of(client: Client) -> dict[str, str]:
    return {"Authorization": f"Bearer {client.login.token}"}


if __name__ == "__main__":
    run_benchmark(main)
