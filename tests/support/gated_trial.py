"""A small trial that trains only as far as a test lets it, so that a fault hits at a known batch.

Owns the trial's source, its configuration and the gate: a folder where the test writes how many batches are allowed
and where each rank writes its pid and the batch it stands before. Used by tests/e2e and tests/faults.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.wait import pause

NUM_BATCHES = 16
CHECKPOINT_PERIOD = 4
NUM_RANKS = 4

SOURCE = '''
import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gangline import get_cluster_info, pytorch


class AtOnce(pytorch.PyTorchCallback):
    def on_training_workload_end(self, avg_metrics, batch_metrics):
        """Where somebody looks at it, a report goes off before the next batch, which may wait at the gate."""


class GatedTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        info = get_cluster_info()
        self.context = context
        self.rank = context.distributed.get_rank()
        self.attempt = info.attempt
        self.gate = Path(context.get_hparam("gate"))
        self.desk = self.gate / info.allocation_id
        self.desk.mkdir(exist_ok=True)
        torch.manual_seed(1)
        self.model = context.wrap_model(nn.Linear(4, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.05))

    def build_training_data_loader(self):
        data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
        return pytorch.DataLoader(data, batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self):
        return pytorch.DataLoader(TensorDataset(torch.randn(8, 4), torch.randn(8, 1)), batch_size=2)

    def build_callbacks(self):
        return {"at once": AtOnce()}

    def train_batch(self, batch, epoch_idx, batch_idx):
        self.report(batch_idx)
        while batch_idx >= self.limit():
            time.sleep(0.01)
        time.sleep(self.seconds())
        print(f"attempt {self.attempt} batch {batch_idx + 1}", flush=True)
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        inputs, targets = batch
        return {"error": nn.functional.mse_loss(self.model(inputs), targets)}

    def report(self, batch_idx):
        draft = self.desk / f".rank-{self.rank}"
        place = {"agent": get_cluster_info().agent_id, "interface": os.environ["GLOO_SOCKET_IFNAME"]}
        draft.write_text(json.dumps({"pid": os.getpid(), "batch": batch_idx, **place}))
        draft.rename(self.desk / f"rank-{self.rank}")

    def limit(self):
        own = self.gate / f"limit-{self.rank}"
        return int((own if own.exists() else self.gate / "limit").read_text())

    def seconds(self):
        pace = self.gate / "pace"
        return float(pace.read_text()) if pace.exists() else 0.0
'''


@dataclass(frozen=True, slots=True)
class RankDesk:
    """Holds the files that one rank has written."""

    pid: int
    batch: int  # batch before which the rank waits, from 0
    agent: str
    interface: str  # interface that gloo uses


class Gate:
    """folder: made by the test; the code and the ranks' desks lie in it. Closed at first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.code = folder / "code"
        self.code.mkdir(parents=True)
        (self.code / "model_def.py").write_text(SOURCE)
        self.allow(0)

    def config(self, slots: int = NUM_RANKS, **more: Any) -> str:
        """Reports every batch, saves every fourth and keeps all of them."""
        return yaml.safe_dump(
            {
                "name": "gated",
                "entrypoint": "model_def:GatedTrial",
                "hyperparameters": {"global_batch_size": 2 * slots, "gate": str(self.folder)},
                "searcher": {"name": "single", "metric": "error", "max_length": {"batches": NUM_BATCHES}},
                "min_checkpoint_period": {"batches": CHECKPOINT_PERIOD},
                "checkpoint_storage": {"save_trial_latest": NUM_BATCHES},
                "scheduling_unit": 1,
                "max_restarts": 1,
                # Ranks that wait at the gate do not hang.
                "hang_detection": {"enabled": False},
                "resources": {"slots_per_trial": slots},
                **more,
            }
        )

    def allow(self, batches: int, rank: int | None = None) -> None:
        """So many batches in all. rank: only this one's limit, which holds instead of everybody's."""
        write_whole(self.folder / ("limit" if rank is None else f"limit-{rank}"), str(batches))

    def pace(self, seconds: float) -> None:
        """Sets the least time of a batch, for tests that stop it in the middle."""
        write_whole(self.folder / "pace", str(seconds))

    def desks(self, allocation_id: str) -> dict[int, RankDesk]:
        """By rank, of the ranks of this attempt that have come so far."""
        folder = self.folder / allocation_id
        return {
            int(path.name.removeprefix("rank-")): RankDesk(**json.loads(path.read_text()))
            for path in folder.glob("rank-*")
        }

    def wait_at(
        self, allocation_id: str, batch: int, num_ranks: int = NUM_RANKS, seconds: float = 60.0
    ) -> dict[int, RankDesk]:
        """Until every rank stands before this batch."""
        wait_for(
            lambda: sum(desk.batch >= batch for desk in self.desks(allocation_id).values()) == num_ranks,
            f"{num_ranks} ranks of {allocation_id} before batch {batch}",
            seconds,
        )
        return self.desks(allocation_id)


def write_whole(path: Path, text: str) -> None:
    """Writes a file that another process reads again and again. It never reads an empty one, or half."""
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    draft.rename(path)


def wait_for(condition: Callable[[], bool], what: str | Callable[[], str], seconds: float = 90.0) -> None:
    """Returns when the condition holds; for tests without an event loop. what: for the failure; called if it is one."""
    began_at = time.monotonic()
    while not condition():
        if time.monotonic() > began_at + seconds:
            raise AssertionError(f"{what if isinstance(what, str) else what()}: not within {seconds:g} s")
        time.sleep(pause(began_at))
