"""Code written for Determined runs as it is: a trial as a class and as a script, and the stages of the Core API."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gangline.cluster_info import CheckpointInfo
from gangline.domain.state import ExitKind
from gangline.protocol.wire import enum_member
from gangline.pytorch import load_checkpoint
from tests.support.determined_source import CHECKPOINTS, DISTRIBUTED, LAUNCHED, METRICS, MNIST, SEARCH
from tests.support.event_file import read_scalars
from tests.support.rank import RunningTrial, Trial, run_trial, start_trial
from tests.support.source import ROOT

_LAUNCHER = "python3 -m determined.launch.torch_distributed"
_OWN_LAUNCHER = "python3 4_distributed.py launcher"
# These workers have no use for torch, whose import takes longer than all they do. Their launchers and they start warm;
# those of test_core_script_in_two_ranks start cold.
_LIGHT = LAUNCHED.replace("import torch.distributed as dist\n", "")
_HPARAMS = {"global_batch_size": 64, "learning_rate": 0.01, "hidden": 16}


def _run(directory: Path, entrypoint: str, code: dict[str, str], size: int = 1, **more: Any) -> RunningTrial:
    searcher = {"name": "single", "metric": "validation_loss", "max_length": more.pop("max_length", {"epochs": 2})}
    hparams = more.pop("hparams", _HPARAMS)
    latest = more.pop("latest", None)
    config = {"entrypoint": entrypoint, "searcher": searcher, **more}
    running, codes = run_trial(directory, Trial(code, config, hparams, size, latest))
    assert codes == [0] * size, running.output(0)
    return running


def test_trial_class_in_two_ranks(tmp_path: Path) -> None:
    running = _run(
        tmp_path,
        f"{_LAUNCHER} --trial model_def:BarsTrial",
        {"model_def.py": MNIST},
        size=2,
        scheduling_unit=4,
        min_validation_period={"epochs": 1},
    )
    assert list(running.runner.metric("training", "loss")) == [4, 8, 12, 16]
    accuracies = running.runner.metric("validation", "accuracy")
    assert list(accuracies) == [8, 16]
    assert accuracies[16] > 0.8
    assert running.runner.metric("validation", "validation_loss")[16] < 1.0
    scalars = read_scalars(tmp_path / "storage" / "tensorboard" / "7.1")
    assert scalars["learning_rate"] == {0: pytest.approx(0.01), 8: pytest.approx(0.01)}
    assert scalars["training/loss"][16] == pytest.approx(running.runner.metric("training", "loss")[16])
    assert load_checkpoint(running.checkpoints()[-1].url)["callbacks"] == {"epochs": {"seen": [0, 1]}}


def test_script_in_two_ranks_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    first = _run(tmp_path / "first", f"{_LAUNCHER} python3 train.py", {"train.py": MNIST}, size=2)
    losses = first.runner.metric("training", "loss")
    assert list(losses) == [4, 8, 12, 16]
    middle = next(checkpoint for checkpoint in first.checkpoints() if checkpoint.batches_completed == 8)
    latest = CheckpointInfo(middle.id, middle.url, 8)
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "storage").symlink_to(tmp_path / "first" / "storage")
    again = _run(tmp_path / "again", f"{_LAUNCHER} python3 train.py", {"train.py": MNIST}, size=2, latest=latest)
    assert again.runner.metric("training", "loss") == pytest.approx({12: losses[12], 16: losses[16]}, abs=1e-6)


def test_script_off_the_cluster_under_the_launcher(tmp_path: Path) -> None:
    """Cold, because in each rank the alias must be what loads the training library."""
    (tmp_path / "train.py").write_text(MNIST)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GANGLINE_")}
    environment = {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = ["-m", "gangline.launch.torch_distributed", "--nproc-per-node", "2", "python3", "train.py"]
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "validation batch      16" in done.stdout


def test_core_script_reports_metrics(tmp_path: Path) -> None:
    running = _run(tmp_path, "python3 1_metrics.py", {"1_metrics.py": METRICS})
    assert running.runner.metric("training", "x") == {10: 10, 20: 20, 30: 30}
    assert running.runner.metric("validation", "x") == {30: 30}


def test_core_script_is_paused_and_goes_on(tmp_path: Path) -> None:
    config = {"entrypoint": "python3 2_checkpoints.py", "searcher": {"name": "single", "metric": "x"}}
    trial = Trial({"2_checkpoints.py": CHECKPOINTS}, config)
    with start_trial(tmp_path / "first", trial) as running:
        running.runner.wait_for(lambda: len(running.checkpoints()) == 2, "the second checkpoint")
        running.runner.preempt("a pause")
        assert running.wait() == [0]
        latest = running.latest_checkpoint()
        assert running.runner.of(0, "stopping")
    # It gives in at a checkpoint: at the one after which it waits, or at the next.
    done = latest.batches_completed
    assert done in (20, 30)
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "storage").symlink_to(tmp_path / "first" / "storage")
    again = _run(tmp_path / "again", "python3 2_checkpoints.py", dict(trial.code), latest=latest)
    assert again.runner.metric("training", "x") == {steps: steps for steps in range(done + 10, 101, 10)}


def test_core_script_trains_as_long_as_the_search_says(tmp_path: Path) -> None:
    running = _run(
        tmp_path,
        "python3 3_hpsearch.py",
        {"3_hpsearch.py": SEARCH},
        hparams={"increment_by": 3},
        max_length={"batches": 20},
    )
    assert running.runner.metric("validation", "x") == {20: 60}
    progress = [(message.batches_completed, message.batches_total) for message in running.runner.of(0, "progress")]
    assert progress == [(10, 20), (20, 20), (20, 20)]


@pytest.mark.parametrize(
    ("entrypoint", "source"),
    [(f"{_LAUNCHER} -- python3 4_distributed.py", DISTRIBUTED), (_OWN_LAUNCHER, LAUNCHED)],
    ids=["torch", "own"],
)
def test_core_script_in_two_ranks(tmp_path: Path, entrypoint: str, source: str) -> None:
    running = _run(
        tmp_path,
        entrypoint,
        {"4_distributed.py": source},
        size=2,
        hparams={"increment_by": 3},
        max_length=20,
    )
    assert running.runner.metric("training", "x") == {10: 70, 20: 140}
    newest = running.checkpoints()[-1]
    assert dict(newest.file_bytes) == {"rank0": 3, "rank1": 3}


def test_launcher_of_a_script_s_own_has_one_worker_in_each_slot(tmp_path: Path, warm: Path) -> None:
    """Which gives in to a preemption for its slot."""
    config = {"entrypoint": _OWN_LAUNCHER, "searcher": {"name": "single", "metric": "x", "max_length": 100_000_000}}
    trial = Trial({"4_distributed.py": _LIGHT}, config, {"increment_by": 3}, 2, python=warm)
    with start_trial(tmp_path, trial) as running:
        running.runner.wait_for(lambda: bool(running.checkpoints()), "the first checkpoint")
        running.runner.preempt("a pause")
        assert running.wait() == [0, 0]
        assert [len(running.runner.of(rank, "stopping")) for rank in (0, 1)] == [1, 1]
    assert [running.output(rank).count("hello from") for rank in (0, 1)] == [1, 1]
    assert "hello from worker 1" in running.output(1).splitlines()


def test_launcher_that_starts_all_workers_in_each_slot_is_told(tmp_path: Path, warm: Path) -> None:
    source = _LIGHT.replace("[*wrapped, ", "[").replace("exit(launcher_main(slots_per_node", "exit(launcher_main(1")
    config = {"entrypoint": _OWN_LAUNCHER, "searcher": {"name": "single", "metric": "x"}}
    trial = Trial({"4_distributed.py": source}, config, {"increment_by": 3}, 2, python=warm)
    running, codes = run_trial(tmp_path, trial)
    assert codes[1] == 1
    told = "error: DistributedContext(rank=0) is made in the slot of rank 1: the experiment's launcher has started"
    assert told in running.output(1)
    [failure] = running.runner.of(1, "worker_failure")
    assert enum_member(ExitKind, failure.kind) is ExitKind.CONFIGURATION_ERROR


def test_what_is_lacking_ends_the_trial_with_its_name(tmp_path: Path) -> None:
    code = {"train.py": "from determined.keras import TFKerasTrial\n"}
    config = {"entrypoint": "python3 train.py"}
    running, codes = run_trial(tmp_path, Trial(code, config))
    assert codes == [1]
    assert running.runner.of(0, "failure")[0].message == (
        "ImportError: determined.keras is not part of Gangline; Gangline trains with PyTorch alone; a loop of your own "
        "can use gangline.core on one slot; docs/from-determined.md has more"
    )
