"""The trainers of Hugging Face and Lightning on two slots: paused and activated, they resume at their step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from gangline.domain.history import MetricsPoint
from gangline.domain.state import Outcome, State
from tests.support.cluster import Cluster
from tests.support.frameworks import install_frameworks
from tests.support.source import ROOT

STEPS, GATE_STEP = 12, 5
METRICS = {"transformers": "eval_b_loss", "lightning": "eval_loss"}


@pytest.fixture(scope="module")
def frameworks() -> Path:
    return install_frameworks()


@pytest.fixture(scope="module")
def cluster(one_agent: Cluster) -> Cluster:
    return one_agent


@pytest.mark.parametrize("name", ["transformers", "lightning"])
def test_paused_training_resumes_at_its_step(name: str, cluster: Cluster, frameworks: Path, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    shutil.copy(ROOT / "tests" / "support" / f"{name}_work.py", code / "train.py")
    config = {
        "name": name,
        "entrypoint": "python3 -m gangline.launch.torch_distributed python3 train.py",
        "searcher": {"name": "single", "metric": METRICS[name], "max_length": {"batches": STEPS}},
        "resources": {"slots_per_trial": 2},
        "environment": {"environment_variables": [f"FRAMEWORKS={frameworks}"]},
        "max_restarts": 0,
    }
    with cluster.connect() as client:
        experiment = client.create_experiment(yaml.safe_dump(config), code).experiment
        # The first attempt stops at the gate until the pause reaches it.
        for stored in client.stream_metrics(experiment.id, follow=True):
            if stored.point.batches_completed == GATE_STEP - 1:
                break
        else:
            pytest.fail("\n".join(entry.text for entry in client.stream_logs(experiment.id))[-3000:])
        client.pause_experiment(experiment.id)
        for view in client.watch_experiment(experiment.id, 120):
            assert view.experiment.outcome is None, view.trials[0].trial.last_failure
            if view.trials[0].trial.state is State.PAUSED:
                break
        client.activate_experiment(experiment.id)
        view = client.wait_experiment(experiment.id)
        texts = "\n".join(entry.text for entry in client.stream_logs(experiment.id))
        assert view.experiment.outcome is Outcome.COMPLETED, texts[-3000:]
        trial = view.trials[0].trial
        assert (trial.attempts, trial.restarts, trial.batches_completed) == (2, 0, STEPS)
        points = [stored.point for stored in client.stream_metrics(experiment.id)]
        steps = sorted(point.batches_completed for point in points if point.group == "training")
        # Each step once: the second attempt began behind the last step of the first.
        assert steps == list(range(1, STEPS + 1))
        validations = {point.batches_completed: point.metrics for point in points if point.group == "validation"}
        assert trial.best_validation == min(metrics[METRICS[name]] for metrics in validations.values())
        assert trial.batches_total == STEPS
        if name == "transformers":
            _check_transformers(points, texts)
        checkpoints = client.list_checkpoints(experiment.id)
        newest = max(checkpoints, key=lambda checkpoint: checkpoint.batches_completed)
        assert newest.batches_completed == STEPS
        client.download_checkpoint(newest.id, tmp_path / "copy")
    assert [json.loads(path.read_text()) for path in (tmp_path / "copy").rglob("my_data.json")] == [{"author": "a lab"}]


def _check_transformers(points: list[MetricsPoint], texts: str) -> None:
    validations = [point for point in points if point.group == "validation"]
    # Both eval sets are one validation of their step.
    assert [point.batches_completed for point in validations] == [4, 8, STEPS]
    assert all(point.metrics.keys() >= {"eval_a_loss", "eval_b_loss"} for point in validations)
    best = max(validations, key=lambda point: point.metrics["eval_b_loss"])
    assert best.batches_completed < GATE_STEP
    # The second attempt has loaded the best checkpoint of the first one.
    assert [line for line in texts.splitlines() if line.startswith("BEST")][-1] == "BEST checkpoint-4 True"
