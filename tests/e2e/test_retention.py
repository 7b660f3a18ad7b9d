"""An experiment on real processes keeps its best and its latest checkpoint, and nothing else stays in the storage:
while it trains, after a rank that died in the middle of a save, after a gateway that was killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gangline.client import Client
from gangline.domain.experiment import Checkpoint
from gangline.domain.state import Outcome, State
from tests.support.cluster import Cluster, running_cluster
from tests.support.gated_run import services_away
from tests.support.gated_trial import wait_for, write_whole
from tests.support.state_history import StateHistory

# The second one is the best.
SCRIPT = """
import os
import time
from pathlib import Path

from gangline import core, get_cluster_info

info = get_cluster_info()
limit = Path(info.trial.hparams["limit"])
with core.init() as context:
    done = info.latest_checkpoint.batches_completed if info.latest_checkpoint else 0
    for number, loss in enumerate([0.5, 0.2, 0.4, 0.3, 0.6], 1):
        if number <= done:
            continue
        if number == 3 and info.attempt == 1:
            with context.checkpoint.draft("half").open("weights") as stream:
                stream.write(b"half")
            os._exit(1)
        while number > int(limit.read_text()):
            time.sleep(0.01)
        context.train.report_validation_metrics(number, {"loss": loss})
        with context.checkpoint.store_path({"steps_completed": number}) as (path, _):
            (path / "weights").write_bytes(b"w" * number)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("r"), agents=1, slots=1) as cluster:
        yield cluster


def _batches(client: Client) -> list[int]:
    return sorted(checkpoint.batches_completed for checkpoint in client.list_checkpoints())


def test_best_and_latest_stay_and_nothing_else(cluster: Cluster, tmp_path: Path) -> None:
    limit, code = tmp_path / "limit", tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    write_whole(limit, "2")
    folder = cluster.layout.root / "storage" / "checkpoints"
    config = {
        "name": "kept",
        "entrypoint": "python3 train.py",
        "hyperparameters": {"limit": str(limit)},
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {"slots_per_trial": 1},
        "max_restarts": 1,
    }
    with cluster.connect() as client:
        created = client.create_experiment(yaml.safe_dump(config), code)
        assert created.warnings == ()
        number = created.experiment.id

        # 1. While it trains. Its second attempt goes on from the second checkpoint; what the first left goes too.
        def is_second_attempt_running() -> bool:
            trial = client.get_experiment(number).trials[0].trial
            return (trial.attempts, trial.state) == (2, State.RUNNING)

        wait_for(is_second_attempt_running, "the second attempt", 60)
        wait_for(lambda: _batches(client) == [2], "one checkpoint in state")
        best = client.list_checkpoints()[0]
        wait_for(lambda: _names(folder) == {best.id}, "one checkpoint in the storage, and nothing unfinished", 60)
        refused = cluster.run("checkpoint", "rm", best.id, check=False)
        assert refused.returncode != 0
        assert refused.stderr == (
            f"error: trial {number}.1 (RUNNING) goes on from checkpoint {best.id}, so nothing was deleted; wait for "
            f"its end, or end it with: gangline trial kill {number}.1\n"
        )

        # 2. The gateway is killed, and comes back when two more are to be deleted.
        with StateHistory(cluster.etcd_address) as history, services_away(cluster, "gateway"):
            write_whole(limit, "5")
            wait_for(lambda: len(_marked(history)) == 2, lambda: f"two marked of {history.newest(Checkpoint)}", 60)
            assert len(_names(folder)) == 4
        view = client.wait_experiment(number, 60)
        assert view.experiment.outcome is Outcome.COMPLETED
        wait_for(lambda: _batches(client) == [2, 5], "the best and the latest in state", 60)
        kept = {checkpoint.id for checkpoint in client.list_checkpoints()}
        assert _names(folder) == kept
        for checkpoint_id in kept:
            client.download_checkpoint(checkpoint_id, tmp_path / checkpoint_id)
        listed = cluster.read("checkpoint", "list", str(number))
        assert {row["id"]: row["state"] for row in listed} == dict.fromkeys(kept, "COMPLETED")

        # 3. The policy changes after the end; then a user deletes the rest.
        latest = view.trials[0].trial.latest_checkpoint_id
        assert {best.id, latest} == kept
        policy = ("experiment", "set", "gc-policy", str(number), "--save-trial-best", "0")
        refused = cluster.run(*policy, check=False)
        assert refused.returncode == 2
        assert f"1 checkpoint of experiment {number} " in refused.stderr
        assert "save_trial_best 0, save_trial_latest 1" in cluster.run(*policy, "--yes").stdout
        wait_for(lambda: _batches(client) == [5] and _names(folder) == {latest}, "the end of the best one")
        deleted = cluster.run("checkpoint", "rm", latest).stdout
        assert deleted == f"{latest} is being deleted\n"
        wait_for(lambda: not client.list_checkpoints() and not _names(folder), "the end of the last one")
        assert client.get_experiment(number).trials[0].trial.latest_checkpoint_id == ""


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _marked(history: StateHistory) -> list[Checkpoint]:
    return [checkpoint for checkpoint in history.newest(Checkpoint) if checkpoint.state == "DELETING"]
