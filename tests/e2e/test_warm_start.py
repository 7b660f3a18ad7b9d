"""A search on real processes whose trials begin from another trial's checkpoint, and learn on from there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gangline.domain.state import Outcome
from tests.support.cluster import Cluster, running_cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("w"), agents=1, slots=2) as cluster:
        yield cluster


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
