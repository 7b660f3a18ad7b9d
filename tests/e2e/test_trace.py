"""A command traces a running trial, with real processes; a trial that cannot be traced gives a refusal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gangline.domain.state import Outcome, State
from tests.support.cluster import Cluster
from tests.support.gated_run import GatedRun, gated_run
from tests.support.gated_trial import wait_for

SECONDS = 120.0
LONG = 5000
SCRIPT = """
import os
import time
from gangline import core

with core.init() as context:
    context.train.report_training_metrics(5, {"loss": 0.5})
    while not os.path.exists(GO):
        context.train.report_progress(0.5)
        time.sleep(1)
"""


@pytest.fixture(scope="module")
def cluster(one_agent: Cluster) -> Cluster:
    return one_agent


def test_a_running_trial_is_traced_by_the_command(cluster: Cluster, tmp_path: Path) -> None:
    length = {"name": "single", "metric": "error", "max_length": {"batches": LONG}}
    with gated_run(
        cluster, tmp_path, slots=2, searcher=length, min_checkpoint_period={"batches": LONG}, scheduling_unit=100
    ) as run:
        run.gate.pace(0.05)
        run.gate.allow(LONG)
        trial = f"{run.experiment_id}.1"
        order = _order(cluster, trial, "--batches", "3")
        assert (order["trial_id"], order["allocation_id"], order["batches"]) == (trial, f"{trial}.1", 3)
        folder = Path(order["tensorboard_url"].removeprefix("file://"))
        wait_for(lambda: _says(run, f"is written to {order['tensorboard_url']}"), "the line of its end", SECONDS)
        assert _says(run, "are traced, as ordered")
        (trace,) = folder.glob("*.pt.trace.json")
        assert _num_steps(trace) == 3
        # The line names the file, and the file the batches.
        assert re.fullmatch(r"batches_\d+_to_\d+\.\d+\.pt\.trace\.json", trace.name)
        assert _says(run, f"is written to {order['tensorboard_url']}/{trace.name}")
        # Only the chief was told, and the other rank's own folder holds nothing.
        assert list(folder.rglob("*.pt.trace.json")) == [trace]
        _check_that_a_pause_writes_what_there_is(cluster, run, folder)
        cluster.run("experiment", "kill", str(run.experiment_id))
        run.client.wait_experiment(run.experiment_id, SECONDS)
        refused = cluster.run("trial", "profile", trial, check=False)
        assert refused.stderr == (
            f"error: trial {trial} has ended (CANCELED), and only a running trial can be traced\n"
        )
        assert refused.returncode != 0
        run.check_aftermath()


def test_whoever_cannot_be_traced_is_told_so_by_the_command(cluster: Cluster, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT.replace("GO", repr(str(go))))
    config = (
        "name: script\nentrypoint: python3 train.py\nresources: {slots_per_trial: 1}\nmax_restarts: 0\n"
        "searcher: {name: single, metric: loss, max_length: {batches: 10}}\n"
    )
    with cluster.connect() as client:
        number = client.create_experiment(config, code).experiment.id

        def complaint() -> str:
            return cluster.run("trial", "profile", f"{number}.1", check=False).stderr

        wait_for(lambda: "has no trainer that could trace it" in complaint(), "the refusal", SECONDS)
        go.touch()
        assert client.wait_experiment(number, SECONDS).experiment.outcome is Outcome.COMPLETED
    unknown = cluster.run("trial", "profile", "9999.1", check=False)
    assert unknown.stderr == "error: there is no trial 9999.1; list them with: gangline experiment trials 9999\n"


def _order(cluster: Cluster, trial: str, *arguments: str) -> dict[str, Any]:
    """Places it as soon as the trial has told of its first batches."""
    placed = []

    def place() -> bool:
        done = cluster.run("trial", "profile", trial, *arguments, "--json", check=False)
        if done.returncode == 0:
            placed.append(json.loads(done.stdout))
        return bool(placed)

    wait_for(place, "the order", SECONDS)
    order: dict[str, Any] = placed[0]
    return order


def _check_that_a_pause_writes_what_there_is(cluster: Cluster, run: GatedRun, folder: Path) -> None:
    traces_before = set(folder.glob("*.pt.trace.json"))
    run.gate.pace(0.3)
    _order(cluster, f"{run.experiment_id}.1", "--batches", "50")
    wait_for(lambda: sum("are traced, as ordered" in line for line in _log(run)) == 2, "the second trace", SECONDS)
    # Two batches more, so that there is something to write.
    before = run.gate.desks(run.allocation_id())[0].batch
    run.gate.wait_at(run.allocation_id(), before + 3, num_ranks=2)
    cluster.run("experiment", "pause", str(run.experiment_id))
    wait_for(
        lambda: run.client.get_experiment(run.experiment_id).trials[0].allocation is None, "the trial's stop", SECONDS
    )
    assert run.trial.trial.state is State.PAUSED
    (trace,) = set(folder.glob("*.pt.trace.json")) - traces_before
    assert 1 <= _num_steps(trace) < 50
    wait_for(lambda: _says(run, "batches: training stops"), "why it is shorter", SECONDS)
    refused = cluster.run("trial", "profile", f"{run.experiment_id}.1", check=False)
    assert f"activate it (gangline experiment activate {run.experiment_id})" in refused.stderr
    run.gate.pace(0.05)
    cluster.run("experiment", "activate", str(run.experiment_id))
    wait_for(lambda: run.trial.trial.state is State.RUNNING, "its second attempt", SECONDS)


def _log(run: GatedRun) -> list[str]:
    return [entry.text for entry in run.client.stream_logs(run.experiment_id)]


def _says(run: GatedRun, text: str) -> bool:
    return any(text in line for line in _log(run))


def _num_steps(trace: Path) -> int:
    """Batches that it holds; the profiler of torch names each."""
    events = json.loads(trace.read_text())["traceEvents"]
    assert any(str(event.get("name")).startswith("aten::") for event in events)
    return len({event["name"] for event in events if str(event.get("name")).startswith("ProfilerStep#")})
