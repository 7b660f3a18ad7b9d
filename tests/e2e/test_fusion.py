"""Tensor fusion on a real cluster: one trial tunes, the next recalls, a user lists and forgets."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from gangline.client import Client
from gangline.domain.state import Outcome
from tests.support.cluster import Cluster, running_cluster
from tests.support.fused_trial import SCRIPTED

_CONFIG = """
name: fused
entrypoint: model_def:FusedTrial
hyperparameters: {{global_batch_size: 2, steps: {steps}, straggles: false}}
searcher: {{name: single, metric: loss, max_length: {{batches: {steps}}}}}
resources: {{slots_per_trial: 2}}
optimizations: {{auto_tune_tensor_fusion: true}}
max_restarts: 0
"""


def test_second_trial_trains_with_what_the_first_one_found(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "model_def.py").write_text(SCRIPTED)
    with running_cluster(tmp_path, agents=1, slots=2) as cluster, cluster.connect() as client:
        tuned = _run(client, code, steps=60)
        assert re.search(r"fusion: .*, 2.00x default, \d+ steps", tuned)
        (record,) = client.list_fusion()
        assert record.trial_id == "1.1"
        assert record.gain_ratio == pytest.approx(2.0)
        points = [entry.point for entry in client.stream_metrics(1) if entry.point.group == "fusion"]
        assert [point.metrics["gain_ratio"] for point in points] == [pytest.approx(2.0)]
        recalled = _run(client, code, steps=20)
        assert "2.00x default, recalled from trial 1.1, which took" in recalled
        buckets = re.findall(r"rank \d step (?:3|19|59) buckets (.+)", f"{tuned}\n{recalled}")
        assert len(set(buckets)) == 2
        assert buckets[-4:] == [_last_buckets(tuned)] * 4
        _check_forgetting(cluster, client, record.key)


def _run(client: Client, code: Path, steps: int) -> str:
    """The log of a finished experiment."""
    experiment_id = client.create_experiment(_CONFIG.format(steps=steps), code).experiment.id
    view = client.wait_experiment(experiment_id, 100)
    log = "\n".join(entry.text for entry in client.stream_logs(experiment_id))
    assert view.experiment.outcome is Outcome.COMPLETED, log[-3000:]
    return log


def _last_buckets(log: str) -> str:
    return str(re.findall(r"rank \d step 59 buckets (.+)", log)[-1])


def _check_forgetting(cluster: Cluster, client: Client, key: str) -> None:
    assert [record["key"] for record in cluster.read("fusion", "list")] == [key]
    assert "2.00x" in cluster.run("fusion", "list").stdout
    listed = json.loads(_request(cluster, "GET", "/api/v1/fusion"))["records"]
    assert [(record["key"], record["trialId"]) for record in listed] == [(key, "1.1")]
    _request(cluster, "DELETE", f"/api/v1/fusion/{key}")
    assert client.list_fusion() == []
    with pytest.raises(urllib.error.HTTPError, match="404"):
        _request(cluster, "DELETE", f"/api/v1/fusion/{key}")
    unknown = cluster.run("fusion", "forget", key, check=False)
    assert (unknown.returncode, unknown.stderr) == (
        2,
        f"error: nothing is remembered under {key}; list it with: gangline fusion list\n",
    )
    wrong = cluster.run("fusion", "forget", "../users", check=False)
    assert wrong.returncode == 2
    assert "is no key of a fusion record" in wrong.stderr
    assert cluster.run("fusion", "forget", "--all").stdout == "forgotten: nothing was remembered\n"


def _request(cluster: Cluster, method: str, path: str) -> bytes:
    request = urllib.request.Request(
        cluster.http_url + path, method=method, headers={"Authorization": f"Bearer {cluster.login.token}"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())
