"""Trials on real processes that begin from another trial's checkpoint or an imported one, and learn on from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gangline.domain.state import Outcome
from tests.support.cluster import Cluster
from tests.support.determined_checkpoint import NEWEST, NEXT_LOSSES, unpack

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"


@pytest.fixture(scope="module")
def cluster(one_agent: Cluster) -> Cluster:
    return one_agent


def _config(title: str, num_batches: int, **searcher: Any) -> str:
    values = yaml.safe_load((EXAMPLE / "const.yaml").read_text())
    values |= {"name": title, "min_validation_period": {"batches": num_batches}}
    values["searcher"] |= {"name": "single", "max_length": {"batches": num_batches}, **searcher}
    return yaml.safe_dump(values)


def test_trials_take_the_weights_and_count_from_zero(cluster: Cluster) -> None:
    with cluster.connect() as client:
        source = client.create_experiment(_config("source", 150), EXAMPLE).experiment
        assert client.wait_experiment(source.id).experiment.outcome is Outcome.COMPLETED
        warm = client.create_experiment(
            _config("warm", 10, name="random", max_trials=2, source_trial_id=f"{source.id}.1"), EXAMPLE
        ).experiment
        view = client.wait_experiment(warm.id)
        assert view.experiment.outcome is Outcome.COMPLETED
        cold = client.create_experiment(_config("cold", 10), EXAMPLE).experiment
        cold_view = client.wait_experiment(cold.id)
        texts = [entry.text for entry in client.stream_logs(warm.id)]
    cold_accuracy = cold_view.trials[0].trial.best_validation
    assert cold_accuracy is not None
    for trial in (each.trial for each in view.trials):
        assert trial.batches_completed == 10
        assert trial.best_validation is not None
        assert trial.best_validation > cold_accuracy + 0.2
        words = f"the checkpoint is of trial {source.id}.1 after batch 150: trial {trial.id} takes its state and begins"
        assert any(words in text for text in texts)


def test_imported_checkpoint_of_determined_trains_on_divided(cluster: Cluster, tmp_path: Path) -> None:
    """Determined saved it after two whole epochs of one process. `zero2` on two slots continues with the losses that
    Determined itself got from the next batches."""
    folder = unpack(NEWEST, tmp_path / "old")
    said = cluster.run("checkpoint", "import", str(folder), "--name", "line", "--json")
    record = json.loads(said.stdout)
    checkpoint_id = record["checkpoint"]["id"]
    assert record["checkpoint"]["owner"] == "admin"
    assert record["is_new"]
    assert "imported before" in cluster.run("checkpoint", "import", str(folder)).stdout
    assert "imported" in cluster.run("checkpoint", "list").stdout
    described = cluster.run("checkpoint", "describe", checkpoint_id).stdout
    assert "imported as line, batch 8" in described
    config = {
        "name": "line",
        "entrypoint": "model_def:Line",
        "hyperparameters": {"lr": 0.05, "global_batch_size": 16},
        "searcher": {
            "name": "single",
            "metric": "error",
            "max_length": {"batches": len(NEXT_LOSSES)},
            "source_checkpoint_uuid": checkpoint_id,
        },
        "resources": {"slots_per_trial": 2},
        "parallelism": "zero2",
        "scheduling_unit": 1,
    }
    with cluster.connect() as client:
        experiment = client.create_experiment(yaml.safe_dump(config), folder / "code").experiment
        view = client.wait_experiment(experiment.id)
        assert view.experiment.outcome is Outcome.COMPLETED, view.trials[0].trial.last_failure
        reports = {
            each.point.batches_completed: each.point.metrics
            for each in client.stream_metrics(experiment.id)
            if each.point.group == "training"
        }
        copy = tmp_path / "copy"
        client.download_checkpoint(checkpoint_id, copy)
        client.delete_checkpoints([checkpoint_id])
    losses = [reports[batch]["loss"] for batch in sorted(reports)]
    assert losses == pytest.approx(NEXT_LOSSES, rel=1e-5)
    assert (copy / "state_dict.pth").read_bytes() == (folder / "state_dict.pth").read_bytes()
