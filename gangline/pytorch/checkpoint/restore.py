"""Loads a checkpoint into the models, optimizers and schedulers that a trial has wrapped.

Every rank reads the values that it needs, whatever the strategy and number of ranks of the checkpoint. Called by the
training loop, on all ranks in step, before the first batch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gangline.errors import GanglineError, invalid
from gangline.pytorch.checkpoint.capture import MODEL_VALUES, OPTIMIZER_CLASSES
from gangline.pytorch.checkpoint.name import (
    MODELS,
    OPTIMIZERS,
    STATE,
    join,
    model_path,
    name_parameters,
    parameters_of,
    state_path,
)
from gangline.pytorch.checkpoint.plain import CALLBACKS
from gangline.pytorch.checkpoint.source import Described, Source
from gangline.pytorch.data import seed
from gangline.pytorch.parallel.shared.ownership import class_name, plain_name, plain_names
from gangline.pytorch.trial.callback import PyTorchCallback
from gangline.pytorch.trial.context import PyTorchTrialContext

_log = logging.getLogger("gangline")


def restore(context: PyTorchTrialContext, callbacks: Mapping[str, PyTorchCallback], source: Source) -> None:
    """Restores everything but the random numbers. Raises GanglineError `checkpoint.other_trial`, `other_model` or
    `other_optimizer`, before any change where possible."""
    trainer = source.trainer
    _check_counts(context, trainer)
    for index, model in enumerate(context.models):
        source.align(index, set(plain_names(context.strategy.model_state(model))))
        _check_model(context, index, model, source)
    names = name_parameters(context.models, context.optimizers)
    keys: list[list[str]] = []
    for number, optimizer in enumerate(context.optimizers):
        _check_optimizer(number, optimizer, trainer)
        keys.append(_keys_by_parameter(number, optimizer, trainer[OPTIMIZERS][number]["param_groups"], names))
    for index, model in enumerate(context.models):
        _load_model(context, index, model, source)
    for number, optimizer in enumerate(context.optimizers):
        _load_optimizer(context, number, optimizer, source, keys[number])
    for wrapped, scheduler_state in zip(context.lr_schedulers, trainer["lr_schedulers_state_dict"], strict=True):
        wrapped.scheduler.load_state_dict(scheduler_state)
    _load_scalers(context, trainer["scalers_state_dict"])
    context.strategy.load_rank_state(_own_part(context, source).get("rank_state"))
    for name, callback in callbacks.items():
        if name in trainer[CALLBACKS]:
            callback.load_state_dict(trainer[CALLBACKS][name])


def restore_random(context: PyTorchTrialContext, source: Source) -> None:
    """Restores the random numbers. In a world of another size the ranks start new streams, because the saved ones
    cannot be divided."""
    state = _own_part(context, source).get("rng_state")
    if state is not None:
        seed.restore(state)


def _own_part(context: PyTorchTrialContext, source: Source) -> dict[str, Any]:
    """Returns this rank's own values; empty in a world of another size."""
    is_same_world = len(source.ranks) == context.distributed.size
    return source.ranks[context.distributed.rank] if is_same_world else {}


def _check_model(context: PyTorchTrialContext, index: int, model: nn.Module, source: Source) -> None:
    state = plain_names(context.strategy.model_state(model))
    values = source.trainer[MODEL_VALUES][index]
    prefix = join((MODELS, index, ""))
    saved = {path.removeprefix(prefix) for path in source.tensors if path.startswith(prefix)} | set(values)
    differences = [f"it has no {name}" for name in state if name not in saved]
    known = set(state) | set(map(plain_name, context.strategy.absent_names(model)))
    differences += [f"it holds {name} besides" for name in sorted(saved - known)]
    for name, tensor in _tensors_of(state).items():
        described = source.tensors.get(prefix + name)
        if described is not None and described.shape != tensor.shape:
            shapes = f"{_shape(described.shape)}, not {_shape(tensor.shape)}"
            differences.append(f"its {name} has the shape {shapes}")
    if differences:
        raise _other_model(model, differences)


def _load_model(context: PyTorchTrialContext, index: int, model: nn.Module, source: Source) -> None:
    tensors, values = _tensors_of(context.strategy.model_state(model)), source.trainer[MODEL_VALUES][index]
    source.load({join(model_path(index, plain_name(name))): tensor for name, tensor in tensors.items()})
    own_names = {plain_name(name): name for name in model.state_dict()}
    others = {own_names.get(name, name): value for name, value in values.items()}
    try:
        context.strategy.load_model_state(model, {**tensors, **others})
    except RuntimeError as error:
        raise _other_model(model, [line.strip() for line in str(error).splitlines()[1:]]) from error


def _tensors_of(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def _other_model(model: nn.Module, differences: list[str]) -> GanglineError:
    more = f" (and {len(differences) - 2} differences more)" if len(differences) > 2 else ""
    return invalid(
        "checkpoint.other_model",
        f"the checkpoint holds another model than {class_name(model)}: {'; '.join(differences[:2])}{more}",
    )


def _shape(size: torch.Size) -> str:
    return f"({', '.join(map(str, size))})"


def _check_optimizer(number: int, optimizer: Optimizer, trainer: Mapping[str, Any]) -> None:
    """Raises GanglineError `checkpoint.other_optimizer` for another class. Earlier checkpoints do not name the class,
    so their settings are compared."""
    here, classes = type(optimizer).__name__, trainer.get(OPTIMIZER_CLASSES)
    if classes is None:
        saved = _find_other_settings(optimizer, trainer[OPTIMIZERS][number]["param_groups"])
    else:
        saved = "" if classes[number] == here else f"is a {classes[number]}"
    if saved:
        raise invalid(
            "checkpoint.other_optimizer",
            f"the checkpoint's optimizer {number} {saved}, this trial's is a {here}; use the same class, or load the "
            "weights alone with gangline.pytorch.load_checkpoint",
        )


def _find_other_settings(optimizer: Optimizer, saved_groups: Sequence[Mapping[str, Any]]) -> str:
    """Describes settings that show another class: each class has settings that the other lacks. A newer torch adds
    settings to a class, but removes none. Empty where nothing shows another class."""
    for ours, theirs in zip(optimizer.param_groups, saved_groups, strict=False):
        lacking, besides = sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))
        if lacking and besides:
            return f"has {', '.join(besides)} and no {', '.join(lacking)}"
    return ""


def _load_optimizer(
    context: PyTorchTrialContext, number: int, optimizer: Optimizer, source: Source, keys: Sequence[str]
) -> None:
    """Loads an optimizer's state. keys: names of its parameters in the checkpoint."""
    saved = source.trainer[OPTIMIZERS][number]
    own = {id(parameter) for parameter in context.strategy.stepped_parameters(optimizer)}
    everything = parameters_of(optimizer)
    described, values = source.state_tensors(number), source.optimizer_values(number)
    state: dict[int, dict[str, Any]] = {}
    targets: dict[str, torch.Tensor] = {}
    for position, parameter in enumerate(everything):
        key = keys[position]
        if id(parameter) not in own or (key not in described and key not in values):
            continue
        is_whole = context.strategy.keeps_whole_state(optimizer)
        room = _room_for(described.get(key, {}), parameter, is_whole)
        targets |= {join(state_path(number, key, name)): tensor for name, tensor in room.items()}
        state[position] = {**room, **values.get(key, {})}
    source.load(targets)
    positions = iter(range(len(everything)))
    groups = [{**group, "params": [next(positions) for _ in group["params"]]} for group in saved["param_groups"]]
    optimizer.load_state_dict({**saved, STATE: state, "param_groups": groups})


def _keys_by_parameter(
    number: int, optimizer: Optimizer, saved_groups: list[dict[str, Any]], names: Mapping[int, str]
) -> list[str]:
    """Returns each parameter's name in the checkpoint, in the optimizer's order."""
    groups = [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
    saved = [group["params"] for group in saved_groups]
    here, there = [len(group) for group in groups], [len(group) for group in saved]
    if here != there:
        raise invalid(
            "checkpoint.other_trial",
            f"the checkpoint's optimizer {number} has groups of {', '.join(map(str, there))} parameters, this trial's "
            f"{type(optimizer).__name__} has groups of {', '.join(map(str, here))}; it belongs to another trial, or "
            "this one adds groups while it trains: make them all in __init__, with requires_grad off until they train",
        )
    for ours, theirs in zip(chain(*groups), chain(*saved), strict=True):
        if isinstance(theirs, str) and ours != theirs:
            raise invalid(
                "checkpoint.other_trial",
                f"the checkpoint's optimizer {number} has the parameter {theirs} where this trial's "
                f"{type(optimizer).__name__} has {ours}; it belongs to another trial",
            )
    return [str(name) for name in chain(*saved)]


def _room_for(described: Mapping[str, Described], parameter: nn.Parameter, is_whole: bool) -> dict[str, torch.Tensor]:
    """Returns tensors to fill with a parameter's state. A tensor of the parameter's shape is divided as the parameter,
    unless the state is whole."""
    return {
        name: torch.empty_like(parameter, dtype=entry.dtype, requires_grad=False)
        if entry.shape == parameter.shape and not is_whole
        else torch.empty(entry.shape, dtype=entry.dtype)
        for name, entry in described.items()
    }


def _load_scalers(context: PyTorchTrialContext, states: Sequence[Mapping[str, Any]]) -> None:
    """Loads scalers where both sides have equally many enabled ones. Otherwise mixed precision was turned on or off
    since, and a scaler finds its scale within some steps."""
    scalers = context.scalers
    if len(scalers) == len(states) and all(bool(state) for state in states):
        for scaler, state in zip(scalers, states, strict=True):
            scaler.load_state_dict(state)
    elif context.distributed.is_chief and (any(map(bool, states)) or any(scaler.is_enabled() for scaler in scalers)):
        used, here = sum(map(bool, states)), sum(scaler.is_enabled() for scaler in scalers)
        what = "it starts with a fresh scale" if here else "its scale is left out"
        _log.warning("scalers of gradients: the checkpoint holds %d, this trial has %d; %s", used, here, what)


def _check_counts(context: PyTorchTrialContext, trainer: Mapping[str, Any]) -> None:
    counts = {
        "models": (trainer["num_models"], len(context.models)),
        "optimizers": (len(trainer[OPTIMIZERS]), len(context.optimizers)),
        "lr_schedulers": (len(trainer["lr_schedulers_state_dict"]), len(context.lr_schedulers)),
    }
    for what, (saved, here) in counts.items():
        if saved != here:
            raise invalid(
                "checkpoint.other_trial",
                f"the checkpoint holds {saved} {what}, this trial has {here}; it belongs to another trial",
            )
