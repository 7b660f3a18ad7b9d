"""The first thing a user sees: the digits example, data-parallel over two agents, through the command line, to the
checkpoint that plain PyTorch reads; every way to read what it left says the same."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from gangline.pytorch import load_checkpoint
from tests.support.cluster import Cluster
from tests.support.gated_trial import wait_for
from tests.support.source import ROOT

DIGITS = ROOT / "examples" / "digits"
# Less than the configuration says. tests/e2e/test_quickstart.py trains all of it.
EPOCHS, NUM_BATCHES = 4, 88
# The example prints nothing by itself. It trains once it has been looked at.
PRINT = """
import os
import time
from pathlib import Path

print("hello from rank", os.environ["RANK"], flush=True)
while not Path({gate!r}).exists():
    time.sleep(0.02)
"""
# What README.md of the example shows, and nothing of Gangline.
LOAD = """
import sys, torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
dcp_to_torch_save(sys.argv[1], sys.argv[2])
[model] = torch.load(sys.argv[2], weights_only=True)["models_state_dict"]
own = sorted(name for name in sys.modules if name.startswith("gangline"))
print(sum(tensor.numel() for tensor in model.values()), own)
"""


@pytest.fixture(scope="module")
def cluster(two_agents: Cluster) -> Cluster:
    return two_agents


class Watcher(threading.Thread):
    """Looks at tasks, agents and slots through the CLI once a trial runs. The trial trains when `gate` exists."""

    def __init__(self, cluster: Cluster, gate: Path) -> None:
        super().__init__(daemon=True)
        self.tasks: list[dict[str, Any]] = []
        self.agents: list[dict[str, Any]] = []
        self.slots: list[dict[str, Any]] = []
        self.status: dict[str, Any] = {}
        self.gate = gate
        self._cluster = cluster

    def run(self) -> None:
        try:
            with self._cluster.connect() as client:
                wait_for(lambda: any(task.allocation for task in client.list_tasks()), "a running task", 60)
            self.tasks = self._cluster.read("task", "list")
            self.agents = self._cluster.read("agent", "list")
            self.slots = self._cluster.read("slot", "list")
            self.status = self._cluster.read("status")
        finally:
            self.gate.touch()


@pytest.fixture(scope="module")
def watcher(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Watcher:
    return Watcher(cluster, tmp_path_factory.mktemp("gate") / "open")


@pytest.fixture(scope="module")
def view(cluster: Cluster, watcher: Watcher, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Runs it to its end and returns what `experiment create -f --json` printed."""
    code = tmp_path_factory.mktemp("code")
    (code / "model_def.py").write_text((DIGITS / "model_def.py").read_text() + PRINT.format(gate=str(watcher.gate)))
    watcher.start()
    length = ("--config", f"searcher.max_length.epochs={EPOCHS}")
    done = cluster.run("experiment", "create", "-f", DIGITS / "distributed.yaml", code, *length, "--json", seconds=180)
    watcher.join(60)
    experiment_view: dict[str, Any] = json.loads(done.stdout)
    return experiment_view


def read_lines(cluster: Cluster, *arguments: str) -> list[dict[str, Any]]:
    """Returns the output of a command with --json, one document a line."""
    return [json.loads(line) for line in cluster.run(*arguments, "--json").stdout.splitlines()]


def get(cluster: Cluster, path: str, **query: object) -> Any:
    headers = {"Authorization": f"Bearer {cluster.login.token}"}
    answer = httpx.get(f"{cluster.http_url}/api/v1/{path}", params=query, headers=headers, timeout=30)  # type: ignore[arg-type]  # any value is printed
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_it_completes_and_reads_the_digits(view: dict[str, Any]) -> None:
    [trial] = view["trials"]
    assert (view["experiment"]["outcome"], trial["trial"]["attempts"]) == ("COMPLETED", 1)
    assert trial["validation"]["metrics"]["accuracy"] >= 0.9
    assert trial["trial"]["batches_completed"] == NUM_BATCHES
    timeline = [value for name, value in trial["trial"]["timeline"].items()]
    assert timeline == sorted(timeline)
    assert timeline[0] > 0


def test_lists_show_who_holds_the_slots_while_it_runs(view: dict[str, Any], watcher: Watcher) -> None:
    number = view["experiment"]["id"]
    allocation_id = f"{number}.1.1"
    [task] = watcher.tasks
    assert task["allocation"]["id"] == allocation_id
    assert {member["agent_id"]: len(member["slot_ids"]) for member in task["allocation"]["members"]} == {
        "agent-1": 2,
        "agent-2": 2,
    }
    assert {slot["slot"]["id"]: slot["allocation_id"] for slot in watcher.slots} == dict.fromkeys(
        ("agent-1/0", "agent-1/1", "agent-2/0", "agent-2/1"), allocation_id
    )
    assert [len(agent["allocation_id_by_slot_id"]) for agent in watcher.agents] == [2, 2]
    assert (watcher.status["cluster"]["num_slots"], watcher.status["cluster"]["num_slots_used"]) == (4, 4)


def test_metrics_are_the_same_by_command_http_and_sdk(cluster: Cluster, view: dict[str, Any]) -> None:
    number = view["experiment"]["id"]
    by_command = read_lines(cluster, "experiment", "metrics", str(number))
    training = [entry["point"] for entry in by_command if entry["point"]["group"] == "training"]
    validation = [entry["point"] for entry in by_command if entry["point"]["group"] == "validation"]
    periodic, validated = range(10, NUM_BATCHES + 1, 10), range(44, NUM_BATCHES + 1, 44)
    assert [point["batches_completed"] for point in training] == sorted({*periodic, *validated})
    assert [point["batches_completed"] for point in validation] == list(validated)
    assert training[-1]["metrics"]["loss"] < training[0]["metrics"]["loss"] / 5
    with cluster.connect() as client:
        entries = list(client.stream_metrics(number))
    by_sdk = [(entry.id, entry.point.batches_completed, dict(entry.point.metrics)) for entry in entries]
    assert [(e["id"], e["point"]["batches_completed"], e["point"]["metrics"]) for e in by_command] == by_sdk
    by_http = get(cluster, f"experiments/{number}/metrics")["metrics"]
    assert [(e["id"], e["point"]["batchesCompleted"], e["point"]["metrics"]) for e in by_http] == by_sdk


def test_logs_are_the_same_by_command_http_and_sdk(cluster: Cluster, view: dict[str, Any]) -> None:
    number = view["experiment"]["id"]
    by_command = [(e["id"], e["rank"], e["text"]) for e in read_lines(cluster, "experiment", "logs", str(number))]
    with cluster.connect() as client:
        by_sdk = [(entry.id, entry.rank, entry.text) for entry in client.stream_logs(number)]
    assert by_command == by_sdk
    by_http = get(cluster, f"experiments/{number}/logs")["logs"]
    assert [(e["id"], e["line"]["rank"], e["line"]["text"]) for e in by_http] == by_sdk
    greeting_by_rank = {rank: text for _, rank, text in by_sdk if text.startswith("hello")}
    assert greeting_by_rank == {rank: f"hello from rank {rank}" for rank in range(4)}


def test_checkpoint_is_listed_fetched_and_loaded_by_torch_alone(
    cluster: Cluster, view: dict[str, Any], tmp_path: Path
) -> None:
    number = view["experiment"]["id"]
    latest = view["trials"][0]["trial"]["latest_checkpoint_id"]
    listed = {checkpoint["id"]: checkpoint for checkpoint in cluster.read("checkpoint", "list", str(number))}
    assert listed[latest]["batches_completed"] == NUM_BATCHES
    fetched = cluster.read("checkpoint", "download", latest, "--output", tmp_path / "checkpoint")
    manifest = tmp_path / "checkpoint" / "metadata.json"
    assert fetched["num_bytes"] == sum(listed[latest]["file_bytes"].values()) + manifest.stat().st_size
    [model] = load_checkpoint(tmp_path / "checkpoint")["models_state_dict"]
    assert sum(tensor.numel() for tensor in model.values()) > 10_000
    # -I: neither this folder nor PYTHONPATH, so that only what is installed can be imported.
    command = [sys.executable, "-I", "-c", LOAD, str(tmp_path / "checkpoint" / "tensors"), str(tmp_path / "model.pth")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    count, modules = done.stdout.split(maxsplit=1)
    assert int(count) > 10_000
    assert modules.strip() == "[]"
