"""Successive halving on a real cluster: real ranks validate at the rungs, are stopped, and give their slots back."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
import yaml

from gangline.domain.state import ExitKind, Outcome, State
from gangline.domain.view import ExperimentView
from gangline.pytorch import load_checkpoint
from tests.support.cluster import Cluster

SOURCE = '''
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gangline import InvalidHP, pytorch


class Trial(pytorch.PyTorchTrial):
    """Its error is its hyperparameter x. Large ones cannot be trained with."""

    def __init__(self, context):
        self.context = context
        if context.get_hparam("x") >= context.get_hparam("invalid"):
            raise InvalidHP("x is too large")
        self.model = context.wrap_model(nn.Linear(4, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.01))

    def build_training_data_loader(self):
        data = TensorDataset(torch.ones(64, 4), torch.ones(64, 1))
        return pytorch.DataLoader(data, batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self):
        return pytorch.DataLoader(TensorDataset(torch.ones(8, 4), torch.ones(8, 1)), batch_size=2)

    def train_batch(self, batch, epoch_idx, batch_idx):
        time.sleep(0.02)
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"error": float(self.context.get_hparam("x"))}
'''
# A script counts epochs by itself and ends when it is told to.
SCRIPT = """
import time

from gangline import core, get_cluster_info

x = get_cluster_info().trial.hparams["x"]
with core.init() as context:
    for operation in context.searcher.operations():
        assert operation.length == 16
        assert context.searcher.get_configured_units() is core.Unit.EPOCHS
        for epoch in range(1, operation.length + 1):
            time.sleep(0.1)
            operation.report_progress(epoch)
            context.train.report_validation_metrics(epoch * 10, {"error": float(x)})
            if context.preempt.should_preempt():
                with context.checkpoint.store_path({"steps_completed": epoch * 10}) as (path, _):
                    (path / "epoch").write_text(str(epoch))
                raise SystemExit(0)
        operation.report_completed(x)
"""
# Trial 1 of the grid ignores its length and gets better all the time. Trial 2 is better at the length and stops there.
ENDLESS = """
import itertools
import time

from gangline import core, get_cluster_info

x = get_cluster_info().trial.hparams["x"]
with core.init() as context:
    for operation in context.searcher.operations():
        for batch in itertools.count(1):
            time.sleep(0.01)
            context.train.report_validation_metrics(batch, {"error": x / batch})
            operation.report_progress(batch)
            if batch % 16 == 0:
                with context.checkpoint.store_path({"steps_completed": batch}) as (path, _):
                    (path / "batch").write_text(str(batch))
            if x == 1 and batch == operation.length:
                break
            if context.preempt.should_preempt():
                raise SystemExit(0)
        operation.report_completed(x)
"""
NUM_BATCHES = 208


@pytest.fixture(scope="module")
def cluster(one_agent: Cluster) -> Cluster:
    return one_agent


def _config(**more: Any) -> str:
    return yaml.safe_dump(
        {
            "name": "halving",
            "entrypoint": "model_def:Trial",
            "hyperparameters": {
                "global_batch_size": 2,
                "x": {"type": "int", "minval": 1, "maxval": 100},
                "invalid": 1000,
            },
            "searcher": {
                "name": "async_halving",
                "metric": "error",
                "num_rungs": 3,
                "divisor": 4,
                "max_trials": 6,
                "max_concurrent_trials": 2,
                "max_length": {"batches": NUM_BATCHES},
            },
            "checkpoint_policy": "none",
            "reproducibility": {"experiment_seed": 5},
            **more,
        }
    )


def _code(folder: Path) -> Path:
    code = folder / "code"
    code.mkdir()
    (code / "model_def.py").write_text(SOURCE)
    (code / "train.py").write_text(SCRIPT)
    (code / "endless.py").write_text(ENDLESS)
    return code


def _stopped(view: ExperimentView) -> list[str]:
    return [
        trial.trial.id
        for trial in view.trials
        if trial.trial.outcome is Outcome.COMPLETED and trial.trial.reason.startswith("its searcher stopped it")
    ]


def test_a_stopped_trial_frees_its_slots_within_a_second(cluster: Cluster, tmp_path: Path) -> None:
    """Over all stopped trials: from the first view in which the order is in state, to the end of the trial. The gateway
    leaves 0.1 s between two views."""
    config = _config(
        resources={"slots_per_trial": 2},
        hyperparameters={
            "global_batch_size": 2,
            "x": {"type": "int", "minval": 1, "maxval": 100},
            "invalid": 1000,
        },
    )
    ordered_at: dict[str, float] = {}
    ended_at: dict[str, float] = {}
    with cluster.connect() as client:
        number = client.create_experiment(config, _code(tmp_path)).experiment.id
        for view in client.watch_experiment(number, 120):
            for trial in (each.trial for each in view.trials):
                if trial.state is State.TERMINAL:
                    ended_at.setdefault(trial.id, trial.ended_at)
                elif trial.closing is not None:
                    ordered_at.setdefault(trial.id, time.time())
        assert (view.experiment.outcome, view.experiment.reason) == (Outcome.COMPLETED, "all 6 trials completed")
        stopped = _stopped(view)
        assert len(stopped) >= 3
        seconds = [ended_at[trial_id] - ordered_at[trial_id] for trial_id in stopped if trial_id in ordered_at]
        assert seconds, "no order was seen before the trial had ended"
        print(f"seconds from the order to the end: {[round(each, 2) for each in seconds]}")
        assert statistics.median(seconds) < 1.0
        by_id = {trial.trial.id: trial.trial for trial in view.trials}
        for trial_id in stopped:
            trial = by_id[trial_id]
            assert NUM_BATCHES // 16 <= trial.batches_completed < NUM_BATCHES
            assert trial.restarts == 0
            assert trial.attempts == 1
            assert trial.latest_checkpoint_id
            [checkpoint] = [each for each in client.list_checkpoints(number) if each.trial_id == trial_id]
            assert load_checkpoint(urlparse(checkpoint.url).path)["progress"]["batches"] == trial.batches_completed
        described = cluster.run("trial", "describe", stopped[0]).stdout
        assert "its searcher stopped it at rung" in " ".join(described.split())
        validated = {stored.point.batches_completed for stored in client.stream_metrics(number, group="validation")}
        # Each trial validates at its rungs by itself.
        assert validated >= {NUM_BATCHES // 16, NUM_BATCHES // 4, NUM_BATCHES}


def test_invalid_hyperparameters_are_replaced(cluster: Cluster, tmp_path: Path) -> None:
    config = yaml.safe_load(_config(max_restarts=3))
    config["searcher"] |= {"max_length": {"batches": 16}, "max_trials": 4}
    with cluster.connect() as client:
        points = client.preview_search(yaml.safe_dump(config), limit=4).hyperparameters_json
        config["hyperparameters"]["invalid"] = max(json.loads(point)["x"] for point in points)
        number = client.create_experiment(yaml.safe_dump(config), _code(tmp_path)).experiment.id
        view = client.wait_experiment(number, 120)
        trials = [trial.trial for trial in view.trials]
        invalid = [trial for trial in trials if trial.outcome is Outcome.FAILED]
        assert invalid, "the largest of the first four points is invalid"
        assert len(trials) - len(invalid) == 4
        for trial in invalid:
            assert trial.last_failure is not None
            assert (trial.last_failure.kind, trial.restarts, trial.attempts) == (ExitKind.INVALID_HP, 0, 1)
            assert "x is too large; not tried again, because its hyperparameters are invalid" in trial.reason
        assert view.experiment.outcome is Outcome.COMPLETED


def test_a_script_with_the_core_api_is_stopped_by_its_epochs(cluster: Cluster, tmp_path: Path) -> None:
    config = yaml.safe_load(_config(entrypoint="python3 train.py"))
    config["searcher"] |= {"max_length": {"epochs": 16}, "divisor": 4, "num_rungs": 2}
    with cluster.connect() as client:
        number = client.create_experiment(yaml.safe_dump(config), _code(tmp_path)).experiment.id
        view = client.wait_experiment(number, 120)
        assert view.experiment.outcome is Outcome.COMPLETED
        stopped = [trial.trial for trial in view.trials if trial.trial.id in _stopped(view)]
        assert stopped
        for trial in stopped:
            assert "at rung 1 of 2 (4 epochs)" in trial.reason
            # On a busy machine the order may arrive some epochs later.
            assert 40 <= trial.batches_completed < 160
            assert "rung 1 of 2 (4 epochs)" in trial.reason
            assert trial.latest_checkpoint_id


def test_a_script_that_ignores_its_length_is_warned_and_ended_and_becomes_no_best(
    cluster: Cluster, tmp_path: Path
) -> None:
    config = yaml.safe_load(_config(entrypoint="python3 endless.py"))
    config["hyperparameters"] = {"x": {"type": "categorical", "vals": [2, 1]}}
    config["searcher"] = {"name": "grid", "metric": "error", "max_length": {"batches": 16}}
    config["checkpoint_storage"] = {"save_trial_best": 1, "save_trial_latest": 1}
    with cluster.connect() as client:
        number = client.create_experiment(yaml.safe_dump(config), _code(tmp_path)).experiment.id
        view = client.wait_experiment(number, 60)
        assert view.experiment.outcome is Outcome.COMPLETED, view.experiment.reason
        endless, honest = (trial.trial for trial in view.trials)
        assert (honest.batches_completed, honest.warning) == (16, "")
        # The last order passes the agent, which takes a moment.
        assert 116 < endless.batches_completed < 400
        for trial, error in ((endless, 2 / 16), (honest, 1 / 16)):
            assert trial.best_validation == pytest.approx(error)
            assert trial.best_validation_batches == 16
        assert endless.warning == (
            "it trains past its length: 17 of 16 batches; validations from there on choose no best, and it ends past "
            "116 batches"
        )
        assert "batches of 16; a trial ends past 116, so let the script stop at the length" in endless.reason
        kept = [checkpoint for checkpoint in client.list_checkpoints(number) if checkpoint.trial_id == endless.id]
        assert {checkpoint.batches_completed for checkpoint in kept if not checkpoint.is_past_length} == {16}
        best = client.experiment(number).top_checkpoint()
        assert (best.batches_completed, best.trial_id) == (16, honest.id)
    described = " ".join(cluster.run("trial", "describe", endless.id).stdout.split())
    assert "warning: it trains past its length: 17 of 16 batches" in described
