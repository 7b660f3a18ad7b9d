"""The trials of one search share what one of them has paid for: the download of the code, and the tuning of fusion."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.domain.state import Outcome
from tests.support.cluster import Cluster, running_cluster
from tests.support.fused_trial import SCRIPTED
from tests.support.gated_trial import wait_for

STEPS = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("many"), agents=1, slots=4) as running:
        yield running


def _search(entrypoint: str, num_trials: int, at_once: int, **fields: object) -> str:
    return json.dumps(
        {
            "name": "many",
            "entrypoint": entrypoint,
            "searcher": {
                "name": "random",
                "metric": "loss",
                "max_trials": num_trials,
                "max_concurrent_trials": at_once,
                "max_length": {"batches": STEPS},
            },
            "max_restarts": 0,
            **fields,
        }
    )


def _fetches_at_gateway(cluster: Cluster) -> float:
    return _sum(f"{cluster.http_url}/metrics", r'gangline_grpc_server_calls_total\{.*method="[^"]*FetchCode".*\}')


def _metric_of_agent(cluster: Cluster, name: str) -> float:
    return _sum(f"http://{cluster.service('agent-1').addresses['metrics']}/metrics", name)


def _sum(url: str, pattern: str) -> float:
    """The sum of all metrics that match; 0 before the first event."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if re.fullmatch(pattern, line.rpartition(" ")[0]))


def test_an_agent_fetches_the_code_of_a_search_once(cluster: Cluster, tmp_path: Path) -> None:
    """Eight trials, four at a time; each may change its own files without harm to the others."""
    (tmp_path / "train.py").write_text(
        "import os, pathlib\n"
        "own = pathlib.Path('note.txt')\n"
        "print('note:', own.read_text())\n"
        "own.write_text('changed')\n"
    )
    (tmp_path / "note.txt").write_text("original")
    (tmp_path / "padding").write_bytes(os.urandom(300_000))
    before = _fetches_at_gateway(cluster), _metric_of_agent(cluster, "gangline_agent_code_fetched_bytes_total")
    with cluster.connect() as client:
        created = client.create_experiment(_search("python3 train.py", 8, 4), tmp_path).experiment
        view = client.wait_experiment(created.id, 100)
        lines = [entry.text for entry in client.stream_logs(created.id)]
    assert view.experiment.outcome is Outcome.COMPLETED, lines
    assert [line for line in lines if line.startswith("note:")] == ["note: original"] * 8
    assert _fetches_at_gateway(cluster) - before[0] == 1
    wait_for(lambda: _metric_of_agent(cluster, "gangline_agent_code_fetched_bytes_total") > before[1], "the count", 40)
    fetched = _metric_of_agent(cluster, "gangline_agent_code_fetched_bytes_total") - before[1]
    assert 300_000 < fetched < 310_000
    assert _metric_of_agent(cluster, "gangline_agent_code_cache_bytes") >= fetched


def test_later_trials_of_a_search_recall_what_the_first_one_tuned(cluster: Cluster, tmp_path: Path) -> None:
    """Their hyperparameters differ, and the shapes of their models do not."""
    (tmp_path / "model_def.py").write_text(SCRIPTED)
    config = _search(
        "model_def:FusedTrial",
        3,
        1,
        hyperparameters={
            "global_batch_size": 2,
            "steps": STEPS,
            "straggles": False,
            "lr": {"type": "log", "minval": -4, "maxval": -1},
        },
        resources={"slots_per_trial": 2},
        optimizations={"auto_tune_tensor_fusion": True},
    )
    with cluster.connect() as client:
        number = client.create_experiment(config, tmp_path).experiment.id
        view = client.wait_experiment(number, 150)
        logs: dict[str, list[str]] = {trial.trial.id: [] for trial in view.trials}
        for entry in client.stream_logs(number):
            logs[entry.trial_id].append(entry.text)
    text = {trial_id: "\n".join(lines) for trial_id, lines in logs.items()}
    assert view.experiment.outcome is Outcome.COMPLETED, text
    assert len({trial.trial.hyperparameters_json for trial in view.trials}) == 3
    first = text[f"{number}.1"]
    assert "recalled" not in first
    tuned = set(re.findall(rf"rank \d step {STEPS - 1} buckets (.+)", first))
    assert len(tuned) == 1
    for trial_id in (f"{number}.2", f"{number}.3"):
        assert f"recalled from trial {number}.1, which took" in text[trial_id]
        assert set(re.findall(r"rank \d step 3 buckets (.+)", text[trial_id])) == tuned, "tuned from the first steps on"
