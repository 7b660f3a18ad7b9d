"""A trial under `parallelism: auto` on two slots: its choice is on record, and lack of memory changes it once."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gangline.config.strategy_choice import parse_choice
from gangline.domain.state import Outcome
from tests.support.cluster import running_cluster

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


def _config(too_large: list[str]) -> str:
    return yaml.safe_dump(
        {
            "name": "auto",
            "entrypoint": "train:MyTrial",
            "parallelism": "auto",
            "hyperparameters": {"global_batch_size": 16, "too_large": too_large},
            "searcher": {"name": "single", "metric": "validation_loss", "max_length": {"batches": 4}},
            "resources": {"slots_per_trial": 2},
            "max_restarts": 0,
        }
    )


@pytest.mark.timeout(300)
def test_a_trial_steps_down_once_where_its_first_choice_runs_out_of_memory(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRIAL)
    with running_cluster(tmp_path / "cluster", agents=1, slots=2) as cluster, cluster.connect() as client:
        ids = [
            client.create_experiment(_config(too_large), tmp_path / "code").experiment.id
            for too_large in (["ddp"], _EVERY)
        ]
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
