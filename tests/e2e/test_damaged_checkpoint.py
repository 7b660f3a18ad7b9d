"""On real processes a trial whose latest checkpoint is damaged goes on from the one before, and says so in its log."""

from __future__ import annotations

from pathlib import Path

import yaml

from gangline.domain.state import Outcome
from tests.support.cluster import running_cluster

# The first attempt saves three checkpoints, damages the last one, and ends with an error.
SCRIPT = """
import logging
from pathlib import Path

from gangline import core, get_cluster_info

info = get_cluster_info()
with core.init() as context:
    done = 0
    if info.latest_checkpoint:
        with context.checkpoint.restore_path(info.latest_checkpoint.id) as path:
            done = int((path / "weights").read_text())
    print("begins after", done, flush=True)
    for number in range(done + 1, 5):
        with context.checkpoint.store_path({"steps_completed": number}) as (path, storage_id):
            (path / "weights").write_text(str(number))
        if number == 3 and info.attempt == 1:
            root = Path(info.storage_url.removeprefix("file://"))
            (root / "checkpoints" / storage_id / "weights").write_text("9")
            raise SystemExit(1)
"""


def test_trial_goes_on_from_the_checkpoint_before(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    config = {
        "name": "damaged",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {"slots_per_trial": 1},
        "checkpoint_storage": {"save_trial_latest": 5},
        "max_restarts": 1,
    }
    with running_cluster(tmp_path / "cluster", agents=1, slots=1) as cluster, cluster.connect() as client:
        number = client.create_experiment(yaml.safe_dump(config), code).experiment.id
        view = client.wait_experiment(number, 60)
        assert view.experiment.outcome is Outcome.COMPLETED
        trial = view.trials[0].trial
        # The death of the first attempt used the one restart, the damage none.
        assert (trial.attempts, trial.restarts, trial.batches_completed) == (3, 1, 4)
        log = cluster.run("trial", "logs", trial.id).stdout
    assert [line.rpartition(" ")[2] for line in log.splitlines() if "begins after" in line] == ["0", "2"]
    assert log.count("weights differs from what was saved (1 bytes, saved 1)") >= 1
    assert log.count("training goes on from the older checkpoint") == 1
