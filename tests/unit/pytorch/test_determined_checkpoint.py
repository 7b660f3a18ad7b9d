"""Checkpoints that published versions of Determined wrote: they load, train on, and are refused where damaged."""

from __future__ import annotations

import os
import shutil
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gangline import pytorch
from gangline.errors import GanglineError
from gangline.pytorch import load_trial_from_checkpoint_path
from gangline.pytorch.checkpoint.determined import strip_prefix
from tests.support.determined_checkpoint import BATCHES, NEWEST, NEXT_LOSSES, VERSIONS, unpack


class _Line(pytorch.PyTorchTrial):
    """The trial of the checkpoints, written for Gangline, which keeps each batch's loss."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 1)))
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=0.05))
        schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.5)
        context.wrap_lr_scheduler(schedule, pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH)
        self.losses: list[float] = []
        self.counter = _Counter()

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"counter": self.counter}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        inputs = torch.linspace(-1, 1, 256).reshape(64, 4)
        data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
        return pytorch.DataLoader(data, batch_size=16, shuffle=False)

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.losses.append(loss.item())
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int = 0) -> dict[str, Any]:
        return {"error": nn.functional.mse_loss(self.model(batch[0]), batch[1])}


class _Counter(pytorch.PyTorchCallback):
    seen = 0

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen = state_dict["seen"]


def _fit(folder: Path, length: int) -> _Line:
    with pytorch.init(hparams={"global_batch_size": 16}) as context:
        trial = _Line(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(length), latest_checkpoint=str(folder))
    return trial


@pytest.mark.parametrize("version", VERSIONS)
def test_trial_is_made_from_its_own_code(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv("PYTHONPATH", "")
    folder = unpack(version, tmp_path / "c")
    trial: Any = load_trial_from_checkpoint_path(folder)
    saved = torch.load(folder / "state_dict.pth", weights_only=False)
    state = trial.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in saved["models_state_dict"][0].items())
    assert {float(entries["step"]) for entries in trial.optimizer.state.values()} == {BATCHES}
    assert trial.optimizer.param_groups[0]["lr"] == 0.05 * 0.5 ** (BATCHES / 2)
    assert trial.context.get_hparam("global_batch_size") == 16
    # The module is the caller's own again, and nothing of the folder stays on the path.
    assert str((folder / "code").resolve()) not in sys.path


def test_training_continues_as_in_determined(tmp_path: Path) -> None:
    """Optimizer, schedule, position in the data and callbacks continue: each loss is Determined's own."""
    trial = _fit(unpack(NEWEST, tmp_path / "c"), BATCHES + 4)
    assert trial.losses == pytest.approx(NEXT_LOSSES, rel=1e-5)
    assert trial.counter.seen == 2


@pytest.mark.parametrize("version", VERSIONS)
def test_position_is_found_in_every_layout(version: str, tmp_path: Path) -> None:
    assert len(_fit(unpack(version, tmp_path / "c"), BATCHES + 2).losses) == 2


def test_states_alone(tmp_path: Path) -> None:
    states = pytorch.load_checkpoint(unpack("0.17.7", tmp_path / "c"))
    assert states["models_state_dict"][0]["0.weight"].shape == (8, 4)
    assert states["callbacks"]["counter"]["seen"] == 2


def _rewrite(folder: Path, **changes: Any) -> Path:
    state = torch.load(folder / "state_dict.pth", weights_only=False)
    torch.save({**state, **changes}, folder / "state_dict.pth")
    return folder


def test_prefix_of_ddp_is_dropped(tmp_path: Path) -> None:
    folder = unpack(NEWEST, tmp_path / "c")
    model = torch.load(folder / "state_dict.pth", weights_only=False)["models_state_dict"][0]
    renamed = {f"module.{name}": value for name, value in model.items()}
    trial = load_trial_from_checkpoint_path(_rewrite(folder, models_state_dict=[renamed]), _Line)
    assert all(torch.equal(trial.model.state_dict()[name], value) for name, value in model.items())
    assert strip_prefix(renamed, {"module.0.weight"}) == ""


def test_objects_need_trust(tmp_path: Path) -> None:
    folder = _rewrite(unpack(NEWEST, tmp_path / "c"), callbacks={"counter": {"seen": 2, "share": Fraction(1, 2)}})
    with pytest.raises(GanglineError, match=r"fractions.Fraction, which is not loaded.*add_safe_globals") as caught:
        load_trial_from_checkpoint_path(folder, _Line)
    assert caught.value.code == "checkpoint.not_plain"
    assert load_trial_from_checkpoint_path(folder, _Line, torch_load_kwargs={"weights_only": False}).losses == []
    with torch.serialization.safe_globals([Fraction]):
        assert _fit(folder, BATCHES + 1).counter.seen == 2


class _Attack:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def test_code_in_the_pickle_does_not_run(tmp_path: Path) -> None:
    folder = _rewrite(unpack(NEWEST, tmp_path / "c"), extra=_Attack())
    with pytest.raises(GanglineError, match=r"posix\.mkdir"):
        load_trial_from_checkpoint_path(folder, _Line)
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "cannot be read"), (b"PK\x03\x04 cut", "cannot be read"), (None, "has no list models_state_dict")],
)
def test_damaged(content: bytes | None, words: str, tmp_path: Path) -> None:
    folder = unpack(NEWEST, tmp_path / "c")
    if content is None:
        torch.save({"model_state_dict": {}}, folder / "state_dict.pth")
    else:
        (folder / "state_dict.pth").write_bytes(content)
    with pytest.raises(GanglineError, match=words) as caught:
        load_trial_from_checkpoint_path(folder, _Line)
    assert caught.value.code == "checkpoint.corrupt"


def test_class_that_cannot_be_imported(tmp_path: Path) -> None:
    folder = unpack(NEWEST, tmp_path / "c")
    (folder / "code" / "model_def.py").write_text("import nothing_like_this\n")
    with pytest.raises(
        GanglineError, match=r"model_def:Line cannot be imported.*nothing_like_this.*trial_class="
    ) as caught:
        load_trial_from_checkpoint_path(folder)
    assert caught.value.code == "checkpoint.code"
    shutil.rmtree(folder / "code")
    with pytest.raises(GanglineError, match="lacks its code"):
        load_trial_from_checkpoint_path(folder)
