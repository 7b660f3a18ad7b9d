"""A trained trial out of a checkpoint's folder, in this process alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gangline import pytorch
from gangline.core.tensorboard import current_folder
from gangline.errors import GanglineError
from gangline.pytorch import load_trial_from_checkpoint_path
from tests.support.points_trial import PointsTrial, fit


class _NamedTrial(PointsTrial):
    """Takes more than a context, and reads the configuration."""

    def __init__(self, context: pytorch.PyTorchTrialContext, label: str = "none") -> None:
        super().__init__(context)
        self.label = label
        self.data = context.get_data_config()


def _saved(batches: int = 3, **hparams: Any) -> Path:
    recorder = fit("none", batches, hparams=hparams)
    return Path("checkpoints", recorder.checkpoints[-1])


def test_trial_has_the_hyperparameters_weights_and_optimizer_that_were_saved() -> None:
    folder = _saved(width=12)
    trial = load_trial_from_checkpoint_path(str(folder), trial_class=PointsTrial)
    saved = pytorch.load_checkpoint(folder)
    assert trial.context.get_hparam("width") == 12
    own = trial.model.state_dict()
    assert own.keys() == saved["models_state_dict"][0].keys()
    assert all(torch.equal(own[name], value) for name, value in saved["models_state_dict"][0].items())
    assert all(float(entries["step"]) == 3 for entries in trial.optimizer.state.values())
    assert trial.context.lr_schedulers[0].scheduler.last_epoch == 3


def test_arguments_reach_the_trial() -> None:
    trial = load_trial_from_checkpoint_path(
        _saved(),
        _NamedTrial,
        trial_kwargs={"label": "mine"},
        torch_load_kwargs={"map_location": "cpu"},
        exp_conf={"data": {"url": "file:///data"}},
        map_location="cpu",
    )
    assert (trial.label, trial.data) == ("mine", {"url": "file:///data"})


def test_a_training_around_it_keeps_its_tensorboard_folder() -> None:
    folder = _saved()
    with pytorch.init() as context:
        load_trial_from_checkpoint_path(folder, PointsTrial)
        assert current_folder() is context.core.tensorboard


def test_trial_class_is_required() -> None:
    folder = _saved()
    with pytest.raises(GanglineError, match=r"checkpoints hold no code, .* pass trial_class=, or use load_checkpoint"):
        load_trial_from_checkpoint_path(folder)


def test_unknown_argument_is_named() -> None:
    with pytest.raises(GanglineError, match="has no argument trial_clas; it takes trial_class, trial_kwargs"):
        load_trial_from_checkpoint_path("anywhere", trial_clas=PointsTrial)


class _WiderTrial(PointsTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.second = context.wrap_model(torch.nn.Linear(2, 2))


def test_another_trial_and_a_damaged_folder_are_refused() -> None:
    folder = _saved()
    with pytest.raises(GanglineError) as caught:
        load_trial_from_checkpoint_path(folder, _WiderTrial)
    assert caught.value.code == "checkpoint.other_trial"
    (folder / "trainer.pth").unlink()
    with pytest.raises(GanglineError, match=r"lacks trainer.pth; use another checkpoint"):
        load_trial_from_checkpoint_path(folder, PointsTrial)
    with pytest.raises(GanglineError) as caught:
        load_trial_from_checkpoint_path("nowhere", PointsTrial)
    assert caught.value.code == "checkpoint.not_found"
