"""The life after the end of an experiment on a whole cluster, through the commands: usage, archive, delete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cluster import Cluster
from tests.support.gated_trial import wait_for

SCRIPT = """
from pathlib import Path

from gangline import core
from gangline.core.tensorboard import current_folder

with core.init() as context:
    print("a line of the trial")
    context.train.report_validation_metrics(1, {"loss": 1.0})
    (current_folder().path / "events").write_text("e")
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, _):
        (path / "weights").write_bytes(b"w")
"""


@pytest.fixture(scope="module")
def cluster(one_agent: Cluster) -> Cluster:
    return one_agent


def test_usage_archive_and_delete(cluster: Cluster, tmp_path: Path) -> None:
    code, config = tmp_path / "code", tmp_path / "exp.yaml"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    searcher = {"name": "single", "metric": "loss"}
    resources = {"slots_per_trial": 1}
    config.write_text(
        yaml.safe_dump({"name": "old", "entrypoint": "python3 train.py", "searcher": searcher, "resources": resources})
    )
    storage = cluster.layout.root / "storage"
    before = _files(storage)
    number = _number(cluster.run("experiment", "create", "-f", str(config), str(code)).stdout)
    assert {path.parts[0] for path in _files(storage) - before} == {"checkpoints", "code", "tensorboard"}

    [trial] = cluster.read("experiment", "describe", number)["trials"]
    timeline = trial["trial"]["timeline"]
    held = trial["trial"]["ended_at"] - timeline["placed_at"]
    [entry] = _usage(cluster, number)
    assert (entry["num_allocations"], entry["gpu_slot_seconds"]) == (1, 0.0)
    assert entry["cpu_slot_seconds"] == pytest.approx(held)

    archived = f"experiment {number} old: COMPLETED, archived\n"
    assert cluster.run("experiment", "archive", number).stdout == archived
    assert number not in _listed(cluster)
    assert number in _listed(cluster, "--all")

    refused = cluster.run("experiment", "delete", number, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert cluster.run("experiment", "delete", "--yes", number).stdout == f"experiment {number} is being deleted\n"
    wait_for(lambda: number not in _listed(cluster, "--all"), "the end of the deletion", 60)
    described = cluster.run("experiment", "describe", number, check=False)
    assert described.returncode == 2
    assert described.stderr == f"error: there is no experiment {number}; list them with: gangline experiment list\n"
    assert _files(storage) - before == set()
    assert cluster.run("experiment", "delete", "--yes", number).stdout == f"experiment {number} is deleted\n"
    assert _usage(cluster, number) == [entry]
    created = cluster.run("experiment", "create", "--again", "-f", str(config), str(code)).stdout
    assert f"experiment {int(number) + 1} old: COMPLETED" in created


def _number(created: str) -> str:
    [number] = re.findall(r"experiment (\d+) old: COMPLETED", created)
    return str(number)


def _listed(cluster: Cluster, *options: str) -> list[str]:
    return [str(row["id"]) for row in cluster.read("experiment", "list", *options)]


def _usage(cluster: Cluster, number: str) -> list[Any]:
    entries = cluster.read("usage", "--since", "1h", "--by", "experiment")["entries"]
    return [entry for entry in entries if entry["key"] == number]


def _files(storage: Path) -> set[Path]:
    return {path.relative_to(storage) for path in storage.rglob("*") if path.is_file()}
