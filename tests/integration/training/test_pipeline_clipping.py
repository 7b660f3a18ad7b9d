"""Norms that a trial measures in clip_grads while a pipeline trains it: they are those of one process. Where slots
would measure different ones, all of them refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gangline.errors import GanglineError
from tests.support.folder_work import in_folder
from tests.support.gang import run_gang
from tests.support.pipeline_trial import Alone, ChainTrial, Run, check_same, pipeline, train, train_by_name

_MOST = 0.05
_clip_imported_before = nn.utils.clip_grad_norm_


class ClippingTrial(ChainTrial):
    """hyperparameters: clips, a name in RIGHT or WRONG."""

    def clip(self, parameters: Any) -> None:
        clips: Callable[[Any, Any], None] = {**RIGHT, **WRONG}[self.context.get_hparams()["clips"]]
        clips(self, parameters)


def _run(name: str, **options: Any) -> Run:
    return Run(ClippingTrial, pipeline(**options), hparams={"clips": name, "optimizer": "sgd"})


def _gradients(parameters: Any) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _scale(gradients: list[torch.Tensor], norm: torch.Tensor) -> None:
    for gradient in gradients:
        gradient.mul_(torch.clamp(_MOST / (norm + 1e-6), max=1.0))


def _all_without_none(trial: Any, parameters: list[nn.Parameter]) -> None:
    _clip_imported_before([parameter for parameter in parameters if parameter.grad is not None], _MOST)


def _all_by_total_norm(trial: Any, parameters: list[nn.Parameter]) -> None:
    # Views of the gradients are those of the gradients.
    norm = nn.utils.get_total_norm([gradient.detach().flatten() for gradient in _gradients(parameters)])
    _scale(_gradients(parameters), norm)


def _groups_by_total_norm(trial: Any, parameters: list[nn.Parameter]) -> None:
    for group in trial.optimizer.param_groups:
        _scale(_gradients(group["params"]), nn.utils.get_total_norm(_gradients(group["params"])))


def _layers_with_torch(trial: Any, parameters: list[nn.Parameter]) -> None:
    for layer in (trial.model.stem, *trial.model.blocks, trial.model.head):
        _clip_imported_before(layer.parameters(), _MOST)


def _layers_with_context(trial: Any, parameters: list[nn.Parameter]) -> None:
    for layer in (trial.model.stem, *trial.model.blocks, trial.model.head):
        trial.context.clip_grad_norm(layer.parameters(), _MOST, float("inf"))


def _each_with_torch(trial: Any, parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        nn.utils.clip_grad_norm_(parameter, _MOST)


def _each_with_context(trial: Any, parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        trial.context.clip_grad_norm(parameter, _MOST)


RIGHT = {
    "all parameters with gradients": _all_without_none,
    "total norm": _all_by_total_norm,
    "total norm of each group": _groups_by_total_norm,
    "layers, with torch": _layers_with_torch,
    "layers, with the context": _layers_with_context,
    "each parameter, with torch": _each_with_torch,
    "each parameter, with the context": _each_with_context,
}


def test_norms_of_the_same_parameters_are_those_of_one_process(tmp_path: Path) -> None:
    runs = {name: _run(name) for name in RIGHT}
    results, alone = train_by_name(2, tmp_path, runs), Alone(tmp_path / "alone")
    for name, run in runs.items():
        check_same(results[name], alone(run))


def test_replicas_measure_one_norm(tmp_path: Path) -> None:
    runs = {
        "averaged": _run("total norm", stages=2),
        "zero2": _run("total norm", stages=2, replicas="zero2"),
        "zero2, by layers": _run("layers, with torch", stages=2, replicas="zero2"),
    }
    results, alone = train_by_name(4, tmp_path, runs), Alone(tmp_path / "alone")
    for name, run in runs.items():
        check_same(results[name], alone(run))


def _layers_without_none(trial: Any, parameters: list[nn.Parameter]) -> None:
    for layer in (trial.model.stem, *trial.model.blocks, trial.model.head):
        gradients = _gradients(layer.parameters())
        if gradients:
            _scale(gradients, nn.utils.get_total_norm(gradients))


def _blocks_without_none(trial: Any, parameters: list[nn.Parameter]) -> None:
    # Each slot has two of the four blocks, so all measure two norms.
    for layer in trial.model.blocks:
        gradients = _gradients(layer.parameters())
        if gradients:
            _scale(gradients, nn.utils.get_total_norm(gradients))


def _each_with_context_without_none(trial: Any, parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            trial.context.clip_grad_norm([parameter], _MOST)


def _one_slot_alone(trial: Any, parameters: list[nn.Parameter]) -> None:
    if trial.model.stem.weight.grad is not None:
        nn.utils.clip_grad_norm_(parameters, _MOST)


def _copies(trial: Any, parameters: list[nn.Parameter]) -> None:
    _scale(_gradients(parameters), nn.utils.get_total_norm([gradient.float() for gradient in _gradients(parameters)]))


def _rows(trial: Any, parameters: list[nn.Parameter]) -> None:
    nn.utils.get_total_norm(next(gradient for gradient in _gradients(parameters) if gradient.dim() > 1)[0])


_UNEQUAL = (
    "clip_grads measures a norm of some gradients on one slot of the pipeline, and of others or none on another; call "
    "context.clip_grad_norm with the parameters of the model or of a layer, the same ones on all slots, whether they "
    "have gradients there or not, or use ddp"
)
_OTHER = (
    "clip_grads measures the norm of tensors that are no gradients of its parameters, which pipeline cannot add up "
    "over its slots; pass parameter.grad to torch.nn.utils.get_total_norm, or use ddp"
)
WRONG = {
    "layers with gradients": _layers_without_none,
    "equally many layers": _blocks_without_none,
    "parameters with gradients": _each_with_context_without_none,
    "one slot": _one_slot_alone,
    "copies": _copies,
    "a part of a gradient": _rows,
}


@in_folder
def refuse(directory: Path, name: str) -> str:
    try:
        train(_run(name))
    except GanglineError as error:
        return error.message
    return ""


@pytest.mark.parametrize("name", list(WRONG))
def test_norms_that_slots_measure_differently_are_refused_on_all_of_them(name: str, tmp_path: Path) -> None:
    message = _OTHER if name in ("copies", "a part of a gradient") else _UNEQUAL
    assert run_gang(2, tmp_path / "gang", refuse, tmp_path / "work", name) == [message] * 2
