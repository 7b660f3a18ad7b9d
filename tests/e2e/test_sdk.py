"""The SDK on a cluster of real processes: the examples of docs/sdk.md as printed, and a gateway that dies meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gangline import AsyncClient, Client, Experiment
from gangline.domain.state import Outcome
from gangline.login import HOME_VARIABLE
from tests.support.cluster import Cluster
from tests.support.gated_run import gated_run, services_away
from tests.support.gated_trial import wait_for
from tests.support.source import ROOT

PAGE = (ROOT / "docs" / "sdk.md").read_text()
FACE = "\N{GRINNING FACE}"
# What the followers of one experiment have read: ids of log lines, ids of metrics, and its outcome.
Readings = tuple[list[int], list[int], Outcome | None]


@pytest.fixture(scope="module")
def cluster(two_agents: Cluster) -> Cluster:
    return two_agents


def test_examples_work_as_printed(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    script = tmp_path / "page.py"
    # Each block says on standard output that it has run.
    script.write_text("".join(f"{block}\nprint('block {number} ran')\n" for number, block in enumerate(blocks)))
    with cluster.connect() as client:
        newest = max((experiment.id for experiment in client.list_experiments(archived=None)), default=0)
    done = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, env={**os.environ, HOME_VARIABLE: str(cluster.home)},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"block (\d+) ran", done.stdout) == [str(number) for number in range(len(blocks))]
    lines = done.stdout.splitlines()
    assert lines[lines.index("block 0 ran") - 2].startswith(f"{newest + 1} COMPLETED"), done.stdout
    assert float(lines[lines.index("block 0 ran") - 1].split()[1]) > 0.9
    assert "experiment.not_found there is no experiment 4711; list them with: gangline experiment list" in lines
    assert "[<Outcome.COMPLETED: 'COMPLETED'>, <Outcome.COMPLETED: 'COMPLETED'>]" in lines
    assert lines[-2:] == ["CANCELED", f"block {len(blocks) - 1} ran"]
    assert (tmp_path / "model" / "metadata.json").exists()
    [loaded] = [line for line in lines if line.endswith(" parameters")]
    assert int(loaded.split()[0]) > 1000


_PROGRAM_OF_DETERMINED = """
from gangline import alias

alias.install()
from determined.experimental import client

exp = client.create_experiment(config="short.yaml", model_dir="examples/digits")
for line in exp.await_first_trial().logs(follow=True):
    pass
print(exp.wait())
best = exp.list_checkpoints()[0]
reports = list(exp.get_trials()[0].iter_metrics("validation"))
print(best.training.trial_id == reports[0].trial_id == exp.id * 100000 + 1, best.download())
accuracy = best.training.validation_metrics["avgMetrics"]["accuracy"]
print(max(report.metrics["accuracy"] for report in reports) == accuracy)
"""


def test_program_of_determined_runs_unchanged(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    config = (ROOT / "examples" / "digits" / "const.yaml").read_text()
    assert "epochs: 10\n" in config
    (tmp_path / "short.yaml").write_text(config.replace("epochs: 10\n", "epochs: 4\n"))
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM_OF_DETERMINED], cwd=tmp_path,
        env={**os.environ, HOME_VARIABLE: str(cluster.home)}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [folder] = (tmp_path / "checkpoints").iterdir()
    assert done.stdout.splitlines() == ["ExperimentState.COMPLETED", f"True checkpoints/{folder.name}", "True"]


def follow(client: Client, number: int, on_metric: Callable[[], object]) -> Readings:
    """Reads logs, metrics and changes at the same time, with one client."""
    experiment = client.experiment(number)

    def read_metrics() -> list[int]:
        return [_note(entry.id, on_metric) for entry in experiment.metrics(follow=True)]

    with ThreadPoolExecutor(2) as pool:
        logs = pool.submit(lambda: [entry.id for entry in experiment.logs(follow=True)])
        metrics = pool.submit(read_metrics)
        outcome = client.experiment(number).wait(120)
        return logs.result(60), metrics.result(60), outcome


async def follow_async(client: AsyncClient, number: int, on_metric: Callable[[], object]) -> Readings:
    experiment = await client.experiment(number)

    async def read_logs() -> list[int]:
        return [entry.id async for entry in experiment.logs(follow=True)]

    async def read_metrics() -> list[int]:
        return [_note(entry.id, on_metric) async for entry in experiment.metrics(follow=True)]

    async with asyncio.TaskGroup() as tasks:
        logs, metrics = tasks.create_task(read_logs()), tasks.create_task(read_metrics())
        outcome = tasks.create_task((await client.experiment(number)).wait(120))
    return logs.result(), metrics.result(), outcome.result()


def _note(number: int, on_metric: Callable[[], object]) -> int:
    on_metric()
    return number


def _run_blocking(cluster: Cluster, number: int, on_metric: Callable[[], object]) -> Readings:
    with Client(cluster.login.address, cluster.login.token, retry_seconds=60) as client:
        return follow(client, number, on_metric)


def _run_async(cluster: Cluster, number: int, on_metric: Callable[[], object]) -> Readings:
    async def run() -> Readings:
        async with AsyncClient(cluster.login.address, cluster.login.token, retry_seconds=60) as client:
            return await follow_async(client, number, on_metric)

    return asyncio.run(run())


@pytest.mark.parametrize("read", [_run_blocking, _run_async])
def test_wait_logs_and_metrics_outlive_a_gateway_that_is_killed(cluster: Cluster, tmp_path: Path, read: Any) -> None:
    with gated_run(cluster, tmp_path) as run, ThreadPoolExecutor(1) as pool:
        run.gate.allow(6)
        run.wait_at(6)
        has_metric = threading.Event()
        reading = pool.submit(read, cluster, run.experiment_id, has_metric.set)
        wait_for(lambda: has_metric.is_set() or reading.done(), "the first metric at the reader")
        with services_away(cluster, "gateway"):
            run.gate.allow(12)
        # The experiment ends after the runner has delivered the metrics of the outage.
        experiment = run.client.experiment(run.experiment_id)
        wait_for(lambda: _last_batch(experiment) >= 11, "the metrics of the outage at the gateway", 90)
        run.allow_all()
        logs, metrics, outcome = reading.result(150)
        assert outcome is Outcome.COMPLETED
        # The last records may arrive after the end.
        stored = list(experiment.metrics())
        assert metrics == [entry.id for entry in stored][: len(metrics)]
        assert max(entry.point.batches_completed for entry in stored[: len(metrics)]) >= 11
        assert logs == [entry.id for entry in experiment.logs()][: len(logs)]
        assert logs


def _last_batch(experiment: Experiment) -> int:
    return max(entry.point.batches_completed for entry in experiment.metrics())


def test_life_of_an_experiment_through_its_object(cluster: Cluster, tmp_path: Path) -> None:
    with gated_run(cluster, tmp_path) as run:
        experiment = run.client.experiment(run.experiment_id)
        run.gate.allow(5)
        run.wait_at(5)
        run.wait_checkpoint(4)
        experiment.pause()
        run.allow_all()
        wait_for(lambda: run.client.jobs()[0].task.allocation is None, "the trial's slots free")
        assert experiment.reload().state == "PAUSED"
        assert not experiment.trials()[0].explain().tasks[0].task.allocation
        experiment.activate()
        assert experiment.wait(90) is Outcome.COMPLETED
        best = experiment.top_checkpoint()
        assert best.id in {checkpoint.id for checkpoint in experiment.trials()[0].checkpoints()}
        folder = best.download(tmp_path / "model")
        assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} >= set(best.files)
        assert list(run.client.checkpoint(best.id).trial().experiment().config) == list(experiment.config)
        experiment.archive()
        assert experiment.id not in [each.id for each in run.client.experiments()]
        assert experiment.id in [each.id for each in run.client.experiments(archived=True)]


def test_a_mapping_may_have_any_character(cluster: Cluster, tmp_path: Path) -> None:
    searcher = {"name": "single", "metric": "loss"}
    variables = [f"TITLE={FACE}"]
    config = {"name": f"run {FACE}", "entrypoint": "true", "data": {FACE: FACE}, "searcher": searcher}
    with cluster.connect() as client:
        experiment = client.create_experiment(
            {**config, "environment": {"environment_variables": variables}}, tmp_path, is_paused=True
        ).experiment
        kept = json.loads(client.get_experiment(experiment.id).experiment.config_json)
        client.kill_experiment(experiment.id)
    assert (kept["name"], kept["data"]) == (config["name"], config["data"])
    assert kept["environment"]["environment_variables"]["cpu"] == variables
