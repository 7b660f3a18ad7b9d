"""Captures this rank's part of a checkpoint: references to its share of the tensors, and plain values.

Copies nothing but values that are converted to bytes. Called by the saver on all ranks in step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from gangline.pytorch.checkpoint.name import (
    OPTIMIZERS,
    STATE,
    Path,
    model_path,
    name_parameters,
    parameters_of,
    state_path,
)
from gangline.pytorch.checkpoint.plain import CALLBACKS
from gangline.pytorch.data import seed
from gangline.pytorch.parallel.shared.even_division import divide
from gangline.pytorch.parallel.shared.ownership import plain_names
from gangline.pytorch.parallel.shared.strategy import Holder
from gangline.pytorch.trial.callback import PyTorchCallback
from gangline.pytorch.trial.context import PyTorchTrialContext

TRAINER_FILE = "trainer.pth"
MODEL_VALUES = "model_values"
OPTIMIZER_VALUES = "optimizer_values"
OPTIMIZER_CLASSES = "optimizer_classes"
OptimizerValues = dict[int, dict[str, dict[str, Any]]]


def rank_file(rank: int) -> str:
    return f"rank_{rank}.pth"


@dataclass(frozen=True, slots=True)
class Captured:
    """State of a trial for a checkpoint."""

    tensors: dict[Path, torch.Tensor]  # this rank's share; the shares of all ranks together have every tensor once
    trainer: dict[str, Any]  # the same on all ranks; the chief saves it
    rank: dict[str, Any]  # values of this rank alone


def capture(
    context: PyTorchTrialContext, callbacks: Mapping[str, PyTorchCallback], progress: Mapping[str, Any]
) -> Captured:
    """Returns the trial's state. progress: the loop's own, plain values."""
    models, model_values = _capture_models(context)
    states, groups, optimizer_values = _capture_optimizers(context)
    trainer = {
        "progress": dict(progress),
        "lr_schedulers_state_dict": [wrapped.scheduler.state_dict() for wrapped in context.lr_schedulers],
        "scalers_state_dict": [scaler.state_dict() for scaler in context.scalers],
        CALLBACKS: {name: callback.state_dict() for name, callback in callbacks.items()},
        "num_models": len(context.models),
        MODEL_VALUES: model_values,
        OPTIMIZERS: groups,
        OPTIMIZER_CLASSES: [type(optimizer).__name__ for optimizer in context.optimizers],
    }
    own = {
        "rng_state": seed.capture(),
        "rank_state": context.strategy.rank_state(),
        OPTIMIZER_VALUES: optimizer_values,
        # Where ranks have different modules, those of this one.
        MODEL_VALUES: model_values if any(map(context.strategy.absent_names, context.models)) else [],
    }
    return Captured(_share_of(context, models, states), trainer, own)


def _capture_models(context: PyTorchTrialContext) -> tuple[dict[Path, torch.Tensor], list[dict[str, Any]]]:
    """Returns tensors, and the extra state that modules keep beside them."""
    tensors: dict[Path, torch.Tensor] = {}
    values: list[dict[str, Any]] = []
    for index, model in enumerate(context.models):
        state = plain_names(context.strategy.model_state(model))
        tensors |= {model_path(index, name): value for name, value in state.items() if isinstance(value, torch.Tensor)}
        values.append({name: value for name, value in state.items() if not isinstance(value, torch.Tensor)})
    return tensors, values


def _capture_optimizers(
    context: PyTorchTrialContext,
) -> tuple[dict[Path, torch.Tensor], list[dict[str, Any]], OptimizerValues]:
    """Returns tensors by path, groups with names for parameters, and the values of states beside tensors: optimizer ->
    parameter -> name -> value."""
    names = name_parameters(context.models, context.optimizers)
    tensors: dict[Path, torch.Tensor] = {}
    groups: list[dict[str, Any]] = []
    values: OptimizerValues = {}
    for number, optimizer in enumerate(context.optimizers):
        saved = optimizer.state_dict()
        order = [names[id(parameter)] for parameter in parameters_of(optimizer)]
        for position, entries in saved[STATE].items():
            for key, value in entries.items():
                # The last dot of a path ends the parameter's name, so a key with a dot cannot be part of a path.
                if isinstance(value, torch.Tensor) and "." not in key:
                    tensors[state_path(number, order[position], key)] = value
                else:
                    values.setdefault(number, {}).setdefault(order[position], {})[key] = value
        named = [{**group, "params": [order[index] for index in group["params"]]} for group in saved["param_groups"]]
        groups.append({**{key: value for key, value in saved.items() if key != STATE}, "param_groups": named})
    return tensors, groups, values


def _share_of(
    context: PyTorchTrialContext, models: dict[Path, torch.Tensor], states: dict[Path, torch.Tensor]
) -> dict[Path, torch.Tensor]:
    """Selects the tensors that this rank saves. Tensors that several ranks have alike are divided so that each rank
    writes about as many bytes."""
    own: dict[Path, torch.Tensor] = {}
    alike: dict[tuple[int, bool], list[tuple[Path, torch.Tensor, Holder]]] = {}
    for path, tensor in (models | states).items():
        # The second part of a state's path is the optimizer's number.
        optimizer = context.optimizers[int(path[1])] if path in states else None
        holder = context.strategy.holder_of(tensor, optimizer)
        if holder.count == 1:
            if holder.index == 0:
                own[path] = tensor
        else:
            alike.setdefault((holder.count, isinstance(tensor, DTensor)), []).append((path, tensor, holder))
    for (count, _), entries in alike.items():
        owners = divide([_bytes_of(tensor) for _, tensor, _ in entries], count)
        chosen = zip(entries, owners, strict=True)
        own |= {path: tensor for (path, tensor, holder), owner in chosen if owner == holder.index}
    return own


def _bytes_of(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()
