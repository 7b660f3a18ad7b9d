"""A trial written for Determined on a real cluster: submitted with its launcher's line, trained on two slots, its
metrics, TensorBoard files and checkpoint where ours are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gangline.pytorch import load_checkpoint
from tests.support.cluster import running_cluster
from tests.support.determined_source import MNIST
from tests.support.event_file import read_scalars

pytestmark = pytest.mark.timeout(300)

_CONFIG = """
name: bars
entrypoint: python3 -m determined.launch.torch_distributed --trial model_def:BarsTrial
hyperparameters: {global_batch_size: 64, learning_rate: 0.01, hidden: 16}
searcher: {name: single, metric: accuracy, smaller_is_better: false, max_length: {epochs: 2}}
resources: {slots_per_trial: 2}
min_validation_period: {epochs: 1}
scheduling_unit: 4
optimizations: {gradient_compression: true}
profiling: {enabled: true}
reproducibility: {experiment_seed: 7}
"""


def test_trial_of_determined_trains_on_two_slots(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "model_def.py").write_text(MNIST)
    (code / "exp.yaml").write_text(_CONFIG)
    with running_cluster(tmp_path / "cluster", agents=1, slots=2) as cluster:
        done = cluster.run("experiment", "create", "-f", code / "exp.yaml", code, "--json", seconds=180)
        view = json.loads(done.stdout)
        assert view["experiment"]["outcome"] == "COMPLETED", done.stdout
        number, latest = view["experiment"]["id"], view["trials"][0]["trial"]["latest_checkpoint_id"]
        lines = cluster.run("experiment", "metrics", str(number), "--json").stdout.splitlines()
        points = [json.loads(line)["point"] for line in lines]
        assert {point["group"] for point in points} == {"training", "validation", "profiling"}
        accuracies = [point["metrics"]["accuracy"] for point in points if point["group"] == "validation"]
        assert accuracies[-1] > 0.8
        [checkpoint] = cluster.folder.rglob(f"checkpoints/{latest}")
        assert load_checkpoint(checkpoint)["callbacks"] == {"epochs": {"seen": [0, 1]}}
        [folder] = cluster.folder.rglob(f"tensorboard/{number}.1")
        assert 16 in read_scalars(folder)["training/loss"]
