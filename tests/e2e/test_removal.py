"""The life after the end of an experiment on a whole cluster, through the commands: usage, archive, delete."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gangline.domain.storage.storage_fault import MARKER_FILE
from tests.support.cluster import Cluster, running_cluster
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
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("d"), agents=1, slots=2) as cluster:
        yield cluster


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
    cluster.run("experiment", "create", "-f", str(config), str(code))
    assert {path.parts[0] for path in _files(storage)} == {"checkpoints", "code", "code_owners", "tensorboard"}

    [trial] = cluster.read("experiment", "describe", "1")["trials"]
    timeline = trial["trial"]["timeline"]
    held = trial["trial"]["ended_at"] - timeline["placed_at"]
    [entry] = cluster.read("usage", "--since", "1h", "--by", "experiment")["entries"]
    assert (entry["key"], entry["num_allocations"], entry["gpu_slot_seconds"]) == ("1", 1, 0.0)
    assert entry["cpu_slot_seconds"] == pytest.approx(held)

    assert cluster.run("experiment", "archive", "1").stdout == "experiment 1 old: COMPLETED, archived\n"
    assert cluster.read("experiment", "list") == []
    assert [row["id"] for row in cluster.read("experiment", "list", "--all")] == [1]

    refused = cluster.run("experiment", "delete", "1", check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert cluster.run("experiment", "delete", "--yes", "1").stdout == "experiment 1 is being deleted\n"
    wait_for(lambda: not cluster.read("experiment", "list", "--all"), "the end of the deletion", 60)
    described = cluster.run("experiment", "describe", "1", check=False)
    assert described.returncode == 2
    assert described.stderr == "error: there is no experiment 1; list them with: gangline experiment list\n"
    assert _files(storage) == []
    assert cluster.run("experiment", "delete", "--yes", "1").stdout == "experiment 1 is deleted\n"
    assert cluster.read("usage", "--since", "1h", "--by", "experiment")["entries"] == [entry]
    created = cluster.run("experiment", "create", "--again", "-f", str(config), str(code)).stdout
    assert "experiment 2 old: COMPLETED" in created


def test_the_output_of_a_script_outlives_the_agents_folder_and_goes_with_the_experiment(
    cluster: Cluster, tmp_path: Path
) -> None:
    code, config = tmp_path / "code", tmp_path / "exp.yaml"
    code.mkdir()
    line = "mkdir $GANGLINE_OUTPUT_DIR/deep && echo 7 > $GANGLINE_OUTPUT_DIR/deep/answer && echo lost > forgotten.txt"
    searcher, resources = {"name": "single", "metric": "loss"}, {"slots_per_trial": 1}
    config.write_text(yaml.safe_dump({"entrypoint": line, "searcher": searcher, "resources": resources}))
    cluster.run("experiment", "create", "-f", str(config), str(code))
    experiment_id = cluster.read("experiment", "list")[0]["id"]
    trial_id = f"{experiment_id}.1"
    assert "not kept: 1 file of the working folder (forgotten.txt)" in cluster.run("trial", "logs", trial_id).stdout
    [ended] = cluster.layout.root.glob(f"agents/*/ended/{trial_id}.*")
    assert (ended / "code/forgotten.txt").exists()
    shutil.rmtree(ended)

    refused = cluster.run("trial", "output", f"{experiment_id}.2", check=False)
    assert (refused.returncode, refused.stderr.partition(";")[0]) == (2, f"error: there is no trial {experiment_id}.2")
    folder = tmp_path / "output"
    assert cluster.run("trial", "output", trial_id, "-o", str(folder)).stdout == f"2 B in {folder}\n"
    assert (folder / "deep/answer").read_text() == "7\n"

    storage = cluster.layout.root / "storage"
    assert (storage / f"outputs/{trial_id}").is_dir()
    cluster.run("experiment", "delete", "--yes", str(experiment_id))
    wait_for(lambda: not (storage / f"outputs/{trial_id}").exists(), "the end of the output", 60)
    assert not any(path.is_file() for path in (storage / "outputs").rglob("*"))


def _files(storage: Path) -> list[Path]:
    """Returns all files but the marker, which stays as long as the storage."""
    files = (path.relative_to(storage) for path in storage.rglob("*") if path.is_file())
    return sorted(path for path in files if str(path) != MARKER_FILE)
