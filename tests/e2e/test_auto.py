"""A trial under `parallelism: auto` on two slots: its choice is on record. Lack of memory changes it once, and so does
the refusal of each strategy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gangline.client import Client
from gangline.config.strategy_choice import parse_choice
from gangline.domain.state import ExitKind, Outcome
from tests.support.cluster import Cluster

TRIAL = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from gangline import pytorch


class OutOfMemoryError(RuntimeError):
    pass


class MyTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))))
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters()))

    def build_training_data_loader(self):
        return pytorch.DataLoader(TensorDataset(torch.randn(64, 64)), batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self):
        return self.build_training_data_loader()

    def train_batch(self, batch, epoch_idx, batch_idx):
        if self.context.strategy.name in self.context.get_hparams()["too_large"] and batch_idx == 2:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        loss = self.model(batch[0]).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"validation_loss": self.model(batch[0]).square().mean()}
"""
_EVERY = ["ddp", "zero1", "zero2", "zero3", "pipeline"]
# The links are set to 1 MB and a million messages a second. An exchange of 1 MB of gradients then takes a second, and a
# pipeline is faster, also on a busy machine. Everything else is measured.
SLOW_LINKS = """
from dataclasses import replace
from gangline.pytorch.plan import auto

measure = auto.measure_place
auto.measure_place = lambda *values: replace(
    measure(*values), inside_rate=1e6, across_rate=1e6, message_seconds=1e-6
)
"""
TWO_BACKWARDS = SLOW_LINKS + TRIAL.replace("nn.Linear(64, 64)", "nn.Linear(256, 256)").replace(
    "torch.randn(64, 64)", "torch.randn(64, 256)"
).replace(
    "        self.context.backward(loss)\n",
    """        is_late = batch_idx >= 2
        self.context.backward(loss / 2, retain_graph=is_late)
        if is_late:
            self.context.backward(loss / 2)
""",
)
_STEPS = 4


@pytest.fixture(scope="module")
def cluster(one_agent: Cluster) -> Cluster:
    return one_agent


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.connect() as connected:
        yield connected


def _code(folder: Path, text: str) -> Path:
    (folder / "train.py").write_text(text)
    return folder


def _config(too_large: list[str], **changes: Any) -> str:
    return yaml.safe_dump(
        {
            "name": "auto",
            "entrypoint": "train:MyTrial",
            "parallelism": "auto",
            "hyperparameters": {"global_batch_size": 16, "too_large": too_large},
            "searcher": {"name": "single", "metric": "validation_loss", "max_length": {"batches": 4}},
            "resources": {"slots_per_trial": 2},
            "max_restarts": 0,
            **changes,
        }
    )


def test_a_trial_steps_down_once_where_its_first_choice_runs_out_of_memory(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    code = _code(tmp_path, TRIAL)
    ids = [client.create_experiment(_config(too_large), code).experiment.id for too_large in (["ddp"], _EVERY)]
    (well,), (never,) = (client.wait_experiment(each, 120).trials for each in ids)
    described = cluster.run("trial", "describe", well.trial.id).stdout
    log = [entry.text for entry in client.stream_logs(ids[0])]
    first = well.trial
    assert (first.outcome, first.restarts, first.attempts) == (Outcome.COMPLETED, 0, 2), first.last_failure
    record = parse_choice(first.strategy_choice_json)
    assert record.out_of_memory == ("ddp",)
    sizes = {row.name: row.bytes["total"] for row in record.rows if "total" in row.bytes}
    assert sizes[record.choice] < sizes["ddp"]
    assert f"auto chose {record.choice} for 2 slots" in described
    assert "ran out of memory in an earlier attempt" in described
    assert any("auto chose ddp for 2 slots" in line for line in log)
    assert any(f"auto chose {record.choice} for 2 slots" in line for line in log)
    second = never.trial
    assert (second.outcome, second.attempts) == (Outcome.FAILED, 2)
    assert (
        f"out of memory with {parse_choice(second.strategy_choice_json).choice}, which auto has chosen" in second.reason
    )


def _losses(client: Client, experiment_id: int) -> dict[int, float]:
    points = [stored.point for stored in client.stream_metrics(experiment_id, group="training")]
    return {point.batches_completed: point.metrics["loss"] for point in points}


def test_a_trial_goes_on_with_another_strategy_where_its_first_choice_refuses_it_later(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    """The second backward pass begins in the third batch, where no plan sees it. The next attempt goes on from the
    checkpoint after the second one."""
    code = _code(tmp_path, TWO_BACKWARDS)
    often = {
        "scheduling_unit": 1,
        "reproducibility": {"experiment_seed": 7},
        "min_checkpoint_period": {"batches": 2},
        "searcher": {"name": "single", "metric": "validation_loss", "max_length": {"batches": _STEPS}},
    }
    section = {"strategy": "auto", "stages": 2, "microbatches": 2, "activation_checkpointing": "none"}
    config = _config([], parallelism=section, **often)
    by_auto = client.wait_experiment(client.create_experiment(config, code).experiment.id, 120)
    trial = by_auto.trials[0].trial
    log = [entry.text for entry in client.stream_logs(by_auto.experiment.id)]
    assert any("auto chose pipeline (stages 2 microbatches 2) for 2 slots" in line for line in log), log
    assert (trial.outcome, trial.restarts, trial.attempts) == (Outcome.COMPLETED, 0, 2), trial.reason
    failure = trial.last_failure
    assert failure is not None
    assert (failure.kind, failure.error_code) == (ExitKind.CONFIGURATION_ERROR, "parallelism.train_batch")
    assert failure.batches_completed == 2
    record = parse_choice(trial.strategy_choice_json)
    assert record.refused == {"pipeline": failure.message}
    assert {row.name: row.refusal for row in record.rows if row.strategy == "pipeline"} == {"pipeline": failure.message}
    assert any(f"auto goes on without pipeline, which refused the trial: {failure.message}" in line for line in log)
    described = " ".join(cluster.run("trial", "describe", trial.id).stdout.split())
    assert f"auto chose {record.choice} for 2 slots" in described
    assert failure.message in described
    named = _config([], parallelism=record.chosen.strategy, **often)
    by_hand = client.wait_experiment(client.create_experiment(named, code).experiment.id, 120)
    assert by_hand.trials[0].trial.outcome is Outcome.COMPLETED
    expected = _losses(client, by_hand.experiment.id)
    assert list(expected) == list(range(1, _STEPS + 1))
    assert _losses(client, by_auto.experiment.id) == pytest.approx(expected, rel=1e-5)
