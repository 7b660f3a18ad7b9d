"""On real processes a trial whose latest checkpoint is damaged goes on from the one before, and says so in its log. One
whose whole storage is away waits for it, and goes on from the latest when the storage is back. The script resumes by
Determined's own line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gangline.client import Client
from gangline.domain.state import Outcome, ReasonCode
from gangline.domain.view import TrialView
from tests.support.cluster import Cluster
from tests.support.gated_trial import wait_for

# The first attempt saves three checkpoints, damages the last one or its storage, and ends with an error.
SCRIPT = """
import logging
import os
import shutil
from pathlib import Path

from gangline import core, get_cluster_info

info = get_cluster_info()
root = Path(info.storage_url.removeprefix("file://"))
with core.init() as context:
    done = 0
    if info.latest_checkpoint:
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            done = int((path / "weights").read_text())
    print("begins after", done, flush=True)
    for number in range(done + 1, 5):
        with context.checkpoint.store_path({"steps_completed": number}) as (path, storage_id):
            (path / "weights").write_text(str(number))
        if number == 3 and info.attempt == 1:
            folder = root / "checkpoints" / storage_id
            DAMAGE
            raise SystemExit(1)
"""


@pytest.fixture(scope="module")
def cluster(one_agent: Cluster) -> Cluster:
    return one_agent


def train(
    cluster: Cluster, folder: Path, damage: str, meanwhile: Callable[[Client, int], None] = lambda client, number: None
) -> tuple[TrialView, str]:
    """The trial at its end, and its log. meanwhile: called with the experiment's id while it runs."""
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT.replace("DAMAGE", damage))
    config = {
        "name": "damaged",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {"slots_per_trial": 1},
        # A storage of its own, which is away as a whole.
        "checkpoint_storage": {"type": "shared_fs", "host_path": str(folder / "storage"), "save_trial_latest": 5},
        "max_restarts": 2,
    }
    (folder / "storage").mkdir()
    with cluster.connect() as client:
        number = client.create_experiment(yaml.safe_dump(config), code).experiment.id
        meanwhile(client, number)
        view = client.wait_experiment(number, 60)
        assert view.experiment.outcome is Outcome.COMPLETED, view.trials[0].trial.reason
        trial = view.trials[0]
        return trial, cluster.run("trial", "logs", trial.trial.id).stdout


def beginnings(log: str) -> list[str]:
    # The report of a failure may quote such a line.
    return [
        line.rpartition(" ")[2] for line in log.splitlines() if "begins after" in line and "its last line" not in line
    ]


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        ("(folder / 'weights').write_text('9')", "weights differs from what was saved (1 bytes, saved 1)"),
        ("(folder / 'weights').unlink()", "lacks weights; use another checkpoint"),
        ("(folder / 'metadata.json').unlink()", "no checkpoint "),
        ("shutil.rmtree(folder)", "no checkpoint "),
    ],
)
def test_trial_goes_on_from_the_checkpoint_before(cluster: Cluster, tmp_path: Path, damage: str, text: str) -> None:
    view, log = train(cluster, tmp_path, damage)
    # The death of the first attempt used one restart, the damage none.
    assert (view.trial.attempts, view.trial.restarts, view.trial.batches_completed) == (3, 1, 4)
    assert beginnings(log) == ["0", "2"]
    assert text in log
    assert log.count("training goes on from the older checkpoint") == 1


def test_trial_whose_storage_is_away_waits_and_steps_back_to_no_older_checkpoint(
    cluster: Cluster, tmp_path: Path
) -> None:
    def bring_back(client: Client, number: int) -> None:
        def is_waiting() -> bool:
            reason = client.get_experiment(number).trials[0].reason
            return reason is not None and reason.code is ReasonCode.STORAGE_AWAY

        wait_for(is_waiting, "a trial that waits for its storage", 60)
        root = Path(client.list_checkpoints(number)[0].url.removeprefix("file://")).parents[1]
        (root / "away").rename(root / "checkpoints")

    view, log = train(cluster, tmp_path, "(root / 'checkpoints').rename(root / 'away')", bring_back)
    # The wait is no failure: only the end of the first attempt was one.
    assert (view.trial.attempts, view.trial.restarts, view.trial.batches_completed) == (2, 1, 4)
    assert beginnings(log) == ["0", "3"]
    assert "checkpoints is empty or absent, so the storage is away as a whole; mount it or bring it back" in log
    assert "training goes on from the older checkpoint" not in log
