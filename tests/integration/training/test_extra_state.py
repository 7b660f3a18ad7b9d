"""Extra state that modules keep beside their tensors is in a checkpoint, whichever rank has the module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from gangline import pytorch
from tests.support.folder_work import in_folder
from tests.support.gang import run_gang

WIDTH = 6


class Counting(nn.Linear):
    """Counts its calls in training."""

    count = 0

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.count += 1
        return torch.tanh(super().forward(input))

    def get_extra_state(self) -> dict[str, int]:
        return {"count": self.count}

    def set_extra_state(self, state: Any) -> None:
        self.count = state["count"]


class CountingTrial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        torch.manual_seed(7)
        self.layers = [Counting(WIDTH, WIDTH) for _ in range(4)]
        self.model = context.wrap_model(nn.Sequential(*self.layers).double())
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.saved = ""

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        trial = self

        class Ids(pytorch.PyTorchCallback):
            def on_checkpoint_upload_end(self, uuid: str) -> None:
                trial.saved = uuid

        return {"ids": Ids()}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        inputs = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(3)).double()
        return pytorch.DataLoader(TensorDataset(inputs), batch_size=self.context.get_per_slot_batch_size())

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        loss = functional.mse_loss(self.model(batch[0]), batch[0])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": functional.mse_loss(self.model(batch[0]), batch[0])}


def _train(parallelism: Any, batches: int, latest: str | None) -> tuple[str, list[int]]:
    """Returns the checkpoint's id, and the count of each layer."""
    with pytorch.init(hparams={"global_batch_size": 16}, exp_conf={"parallelism": parallelism}) as context:
        trial = CountingTrial(context)
        pytorch.Trainer(trial, context).fit(
            max_length=pytorch.Batch(batches), latest_checkpoint=latest, checkpoint_policy="all"
        )
        return context.distributed.broadcast(trial.saved), [layer.count for layer in trial.layers]


@in_folder
def save_and_go_on(directory: Path) -> tuple[str, list[list[int]]]:
    pipeline = {"strategy": "pipeline", "microbatches": 4}
    saved, first = _train(pipeline, 2, None)
    _, second = _train(pipeline, 3, saved)
    _, whole = _train("ddp", 3, saved)
    return saved, [first, second, whole]


def test_every_rank_s_modules_are_in_the_checkpoint(tmp_path: Path) -> None:
    (saved, own), (_, others) = run_gang(2, tmp_path / "gang", save_and_go_on, tmp_path / "work")
    (folder,) = (tmp_path / "work").rglob(saved)
    state = pytorch.load_checkpoint(folder)["models_state_dict"][0]
    # Four microbatches of two batches, and what finds the shapes leaves no trace.
    assert [state[f"{number}._extra_state"] for number in range(4)] == [{"count": 8}] * 4
    assert (own[0][:2], others[0][2:]) == ([8, 8], [8, 8])
    assert (own[1][:2], others[1][2:]) == ([12, 12], [12, 12])
    assert own[2] == others[2] == [9] * 4
