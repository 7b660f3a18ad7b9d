"""MLflow's page beside ours: the same runs with the same metrics in both, opened in the same browser.

Both have all runs in SQLite on this machine. Each figure is of a window without a cache, one page after the other;
before the first of them, both pages are opened once, so that both servers have loaded their code.
"""

from __future__ import annotations

import json
import math
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from playwright.sync_api import Browser, StorageState

from benchmarks.listing import experiment_of, trial_of
from benchmarks.page_part.window import ByteCount, Figure, time_visit, window
from benchmarks.process import end_process, wait_until
from benchmarks.run_folder import make_run_folder
from benchmarks.stored_history import store_reports
from gangline.protocol import wire
from services.common import keys
from services.common.etcd import Put

PACKAGES = ("mlflow==3.17.2",)
NUM_COMPARED = 20
FIGURES = tuple(
    Figure(f"{name}: {quantity}", unit)
    for name in ("gangline", "MLflow")
    for quantity, unit in (
        ("bytes until the first row", "kB"),
        ("first row", "ms"),
        ("bytes until a comparison of 20", "kB"),
        ("comparison of 20", "ms"),
    )
)
_WORKLOAD = Path(__file__).parent.parent / "workload" / "mlflow_runs.py"
_NUM_METRICS = 20
_NUM_STEPS = 10
_START_SECONDS = 180.0
_HAS_METRIC = "[...document.querySelectorAll('tbody th')].some((one) => one.textContent.includes('metric_07'))"


@dataclass(frozen=True, slots=True)
class Site:
    """The addresses of one page, and when what they show is there: expressions in JavaScript."""

    list_address: str
    has_row: str
    compare_address: str
    has_comparison: str
    state: StorageState | None = None


def records(number: int) -> Iterator[Put]:
    """Yields the experiments 1 to `number` with the hyperparameters and metrics of MLflow's runs."""
    first = experiment_of(1)
    for id_ in range(1, number + 1):
        trial = replace(
            trial_of(id_, 1),
            hyperparameters_json=json.dumps({f"parameter_{place}": id_ / (place + 1) for place in range(4)}),
            validation_json=json.dumps(_metrics_of(id_, _NUM_STEPS)),
        )
        yield Put(keys.experiment(id_), wire.encode(replace(first, id=id_, name=f"digits-{id_}", labels=())))
        yield Put(keys.trial(f"{id_}.1"), wire.encode(trial))


def fill(engine: sa.Engine, number: int) -> None:
    for id_ in range(1, number + 1):
        store_reports(engine, f"{id_}.1", "validation", _NUM_STEPS, partial(_metrics_of, id_))


def _metrics_of(number: int, step: int) -> dict[str, float]:
    return {f"metric_{metric:02}": math.sin(number + metric) / step for metric in range(_NUM_METRICS)}


def our_site(address: str, state: StorageState, newest_id: int) -> Site:
    ids = range(newest_id, newest_id - NUM_COMPARED, -1)
    return Site(
        f"{address}/experiments",
        f"document.querySelector(\"[data-row='0'] input[aria-label='Select experiment {newest_id}']\") !== null",
        f"{address}/compare?{'&'.join(f'experiment={id_}' for id_ in ids)}",
        f"document.querySelectorAll('thead th').length === {NUM_COMPARED + 1} && {_HAS_METRIC}",
        state,
    )


@contextmanager
def running_mlflow(python: Path, num_runs: int) -> Iterator[Site]:
    """MLflow's server with so many runs. python: an interpreter that has PACKAGES."""
    folder = make_run_folder("gl-mlflow-")
    database = f"sqlite:///{folder}/mlflow.db"
    numbers = map(str, (num_runs, _NUM_METRICS, _NUM_STEPS))
    written = subprocess.run([str(python), str(_WORKLOAD), database, *numbers], check=True, stdout=subprocess.PIPE)
    made: dict[str, Any] = json.loads(written.stdout)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    serve = [str(python), "-m", "mlflow", "server", "--backend-store-uri", database, "--artifacts-destination"]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [*serve, str(folder / "artifacts"), "--host", "127.0.0.1", "--port", str(port), "--workers", "1"],
            stdout=log, stderr=log, cwd=folder,
        )  # fmt: skip
    try:
        wait_until(lambda: _answers(server, address), "MLflow does not serve", _START_SECONDS, 0.5)
        run_ids, experiment_id = made["run_ids"], made["experiment_id"]
        yield Site(
            f"{address}/#/experiments/{experiment_id}/runs",
            f"document.querySelector(\"[row-id='{run_ids[0]}']\") !== null",
            f'{address}/#/compare-runs?runs={json.dumps(run_ids[:NUM_COMPARED])}&experiments=["{experiment_id}"]',
            f"document.querySelectorAll('.mlflow-compare-run-table thead .data-value').length >= {NUM_COMPARED} "
            f"&& {_HAS_METRIC}",
        )
    finally:
        end_process(server)


def _answers(server: subprocess.Popen[bytes], address: str) -> bool:
    if server.poll() is not None:
        raise SystemExit(f"MLflow's server ended with {server.returncode}")
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


def run(browser: Browser, sites: tuple[Site, Site]) -> tuple[float, ...]:
    """Returns one value for each of FIGURES. sites: ours and MLflow's."""
    return tuple(
        value
        for site in sites
        for address, condition in ((site.list_address, site.has_row), (site.compare_address, site.has_comparison))
        for value in _visit(browser, site, address, condition)
    )


def _visit(browser: Browser, site: Site, address: str, condition: str) -> tuple[float, float]:
    """Returns the kilobytes and the milliseconds."""
    with window(browser, site.state) as page:
        count = ByteCount(page)
        milliseconds = time_visit(page, address, condition)
        return count.num_bytes / 1000, milliseconds
