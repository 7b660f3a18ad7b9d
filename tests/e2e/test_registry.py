"""A version of a model keeps its checkpoint on real processes: from the policy of its experiment while it trains, from
its own script, from users and from the deletion of the experiment. Afterwards the files go like all others."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gangline.domain.state import Outcome
from gangline.errors import GanglineError
from tests.support.cluster import Cluster
from tests.support.gated_trial import wait_for, write_whole
from tests.support.wait import until_sync

# It deletes its first checkpoint itself, after the test has registered it.
SCRIPT = """
import time
from pathlib import Path

from gangline import core, get_cluster_info

info = get_cluster_info()
limit = Path(info.trial.hparams["limit"])
with core.init() as context:
    first = ""
    for number in (1, 2, 3, 4):
        while number > int(limit.read_text()):
            time.sleep(0.01)
        if number == 4:
            context.checkpoint.delete(first)
        context.train.report_validation_metrics(number, {"loss": 1 / number})
        with context.checkpoint.store_path({"steps_completed": number}) as (path, checkpoint_id):
            (path / "weights").write_bytes(b"w" * number)
        first = first or checkpoint_id
"""


def _refusal(cluster: Cluster, *arguments: str) -> str:
    answer = cluster.run(*arguments, check=False)
    assert answer.returncode == 2, answer.stdout
    line: str = answer.stderr.strip()
    assert "\n" not in line
    return line


def test_a_version_keeps_its_checkpoint(one_agent: Cluster, tmp_path: Path) -> None:
    cluster = one_agent
    limit, code = tmp_path / "limit", tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    write_whole(limit, "1")
    config = {
        "name": "registered",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 4}},
        "hyperparameters": {"limit": str(limit)},
        "checkpoint_storage": {"save_trial_best": 0, "save_trial_latest": 1},
    }
    with cluster.connect() as client:
        experiment = client.create_experiment(yaml.safe_dump(config), code).experiment

        def batches() -> list[int]:
            return sorted(each.batches_completed for each in client.list_checkpoints(experiment.id))

        wait_for(lambda: batches() == [1], "the first checkpoint")
        (checkpoint,) = client.list_checkpoints(experiment.id)
        client.create_model("kept")
        version = client.register_model_version("kept", checkpoint.id, aliases=["first"])
        assert (version.number, version.metrics_json) == (1, '{"loss": 1.0}')

        # Training goes on; the policy keeps the latest one alone, and the script deletes the first.
        write_whole(limit, "4")
        view = client.wait_experiment(experiment.id)
        assert view.experiment.outcome is Outcome.COMPLETED, view.experiment.reason
        wait_for(lambda: batches() == [1, 4], "the policy")

        kept = "is version 1 of model 'kept', so nothing was deleted"
        assert kept in _refusal(cluster, "checkpoint", "rm", checkpoint.id)
        assert kept in _refusal(cluster, "experiment", "delete", str(experiment.id), "--yes")
        preview = client.preview_retention(experiment.id, save_trial_latest=0)
        assert [each.batches_completed for each in preview] == [4]
        client.change_retention(experiment.id, save_trial_latest=0)
        wait_for(lambda: batches() == [1], "the new policy")
        client.download_checkpoint(
            client.find_model_version("kept", "first").version.checkpoint_id, tmp_path / "served"
        )
        assert (tmp_path / "served" / "weights").read_bytes() == b"w"

        with pytest.raises(GanglineError, match="gangline model unalias kept first"):
            client.delete_model_version("kept", 1)
        client.remove_model_alias("kept", "first")
        client.delete_model_version("kept", 1)
        client.delete_model("kept")
        cluster.run("experiment", "delete", str(experiment.id), "--yes")
        folder = Path(checkpoint.url.removeprefix("file://"))
        until_sync(lambda: not folder.exists(), "the deletion of the files")
