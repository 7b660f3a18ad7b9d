"""Reads a whole checkpoint into the memory of one process, and makes the content of metadata.json beside the manifest.

Needs no cluster, no process group and no trial: `gangline.pytorch.load_checkpoint` loads a trained model for use.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

import gangline
from gangline.config.strategy_choice import METADATA_KEY
from gangline.domain.experiment import STEPS_COMPLETED, VALIDATION_METRICS
from gangline.domain.storage.foreign_checkpoint import STATE_FORMAT_KEY, TRIAL_ID
from gangline.pytorch.checkpoint.capture import MODEL_VALUES, OPTIMIZER_CLASSES
from gangline.pytorch.checkpoint.name import MODELS, OPTIMIZERS, STATE, join, state_path
from gangline.pytorch.checkpoint.source import STATE_FORMAT, Source, open_checked
from gangline.pytorch.trial.context import PyTorchTrialContext

# Entries of trainer.pth that describe the layout, so load_checkpoint leaves them out.
_INTERNAL = ("num_models", MODEL_VALUES, OPTIMIZER_CLASSES)


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Returns the content of a checkpoint's folder, its tensors whole and on the CPU. Checks every file against the
    manifest first. The folder may be of Determined.

    `models_state_dict` lists the models' states in the order in which the trial wrapped them; each fits the user's bare
    model. `optimizers_state_dict` fits optimizers that were built as the trial builds them.
    """
    source = open_checked(Path(path))
    tensors = {name: torch.empty(described.shape, dtype=described.dtype) for name, described in source.tensors.items()}
    source.load(tensors)
    trainer = {key: value for key, value in source.trainer.items() if key not in _INTERNAL}
    numbers = range(source.trainer["num_models"])
    return {
        **trainer,
        MODELS: [_model_state(index, source, tensors) for index in numbers],
        OPTIMIZERS: [_optimizer_state(number, source, tensors) for number in range(len(source.trainer[OPTIMIZERS]))],
        "rng_state": [rank.get("rng_state") for rank in source.ranks],
        "rank_state": [rank.get("rank_state") or {} for rank in source.ranks],
    }


def is_of_another_trial(saved_id: str, own_id: str) -> bool:
    """Returns whether the ids differ, where both are known."""
    return bool(saved_id and own_id) and saved_id != own_id


def metadata_of(
    context: PyTorchTrialContext, batches: int, validation: Mapping[str, float] = MappingProxyType({})
) -> dict[str, Any]:
    """Returns the metadata of a checkpoint of this trial after so many batches. validation: its metrics; retention
    compares checkpoints by them."""
    choice = context.strategy_choice
    return {
        STEPS_COMPLETED: batches,
        TRIAL_ID: context.get_trial_id(),
        "trial_type": "PyTorchTrial",
        "format": "pytorch",
        STATE_FORMAT_KEY: STATE_FORMAT,
        "gangline_version": gangline.__version__,
        "torch_version": torch.__version__,
        "parallelism": context.strategy.name,
        "world_size": context.distributed.size,
        # Why `parallelism: auto` chose this strategy; null where the configuration names it.
        METADATA_KEY: json.loads(choice.to_json()) if choice else None,
        "hparams": context.get_hparams(),
        # JSON has no infinity and no NaN.
        VALIDATION_METRICS: {name: value for name, value in validation.items() if math.isfinite(value)},
    }


def _model_state(index: int, source: Source, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    prefix = join((MODELS, index, ""))
    own = {path.removeprefix(prefix): tensor for path, tensor in tensors.items() if path.startswith(prefix)}
    return {**own, **source.trainer[MODEL_VALUES][index]}


def _optimizer_state(number: int, source: Source, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Returns a state for the optimizer's own load_state_dict, which counts parameters in the order of its groups."""
    saved = source.trainer[OPTIMIZERS][number]
    described, values = source.state_tensors(number), source.optimizer_values(number)
    order = [str(name) for group in saved["param_groups"] for name in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for position, key in enumerate(order):
        own = {name: tensors[join(state_path(number, key, name))] for name in described.get(key, {})}
        entries = {**own, **values.get(key, {})}
        if entries:
            state[position] = entries
    positions = iter(range(len(order)))
    groups = [{**group, "params": [next(positions) for _ in group["params"]]} for group in saved["param_groups"]]
    return {**saved, STATE: state, "param_groups": groups}
