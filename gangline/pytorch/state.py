"""The trainer's state in a checkpoint: what is in state_dict.pth, how it gets there and back.

Everything in that file is a tensor, a number, a string or a list or dictionary of such, so that
torch.load(weights_only=True) reads it where Gangline is not installed. Called by the training loop.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import gangline
from gangline.core.checkpoint import STEPS_COMPLETED
from gangline.core.storage import verify
from gangline.errors import invalid
from gangline.pytorch import seed
from gangline.pytorch.callback import PyTorchCallback
from gangline.pytorch.context import PyTorchTrialContext

STATE_FILE = "state_dict.pth"


def capture(context: PyTorchTrialContext, callbacks: Mapping[str, PyTorchCallback], progress: dict[str, Any]) -> Any:
    """The whole state on the chief, None elsewhere. All ranks call it in step.

    progress: the loop's own, plain values.
    """
    strategy = context.strategy
    random_states = context.distributed.gather(seed.capture())
    state = {
        "models_state_dict": [strategy.model_state(model) for model in context.models],
        "optimizers_state_dict": [strategy.optimizer_state(optimizer) for optimizer in context.optimizers],
        "lr_schedulers_state_dict": [wrapped.scheduler.state_dict() for wrapped in context.lr_schedulers],
        "scalers_state_dict": [scaler.state_dict() for scaler in context.scalers],
        "callbacks": {name: callback.state_dict() for name, callback in callbacks.items()},
        "rng_state": random_states,
        "rank_state": context.distributed.gather(strategy.rank_state()),
        "progress": progress,
    }
    return state if context.distributed.is_chief else None


def write(directory: Path, state: dict[str, Any]) -> None:
    """Raises GanglineError `checkpoint.not_plain` when something in it cannot be read back safely."""
    path = directory / STATE_FILE
    torch.save(state, path)
    try:
        torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise invalid(
            "checkpoint.not_plain",
            f"the trial's state cannot be read back with weights_only: {_culprit(error)}; keep tensors, numbers, "
            "strings, lists and dictionaries in the state_dict of callbacks and schedulers",
        ) from error


def restore(context: PyTorchTrialContext, callbacks: Mapping[str, PyTorchCallback], state: dict[str, Any]) -> None:
    """Puts a state into what the trial has wrapped. All ranks call it in step."""
    _check_counts(context, state)
    strategy = context.strategy
    for model, model_state in zip(context.models, state["models_state_dict"], strict=True):
        _load_model(context, model, model_state)
    for optimizer, optimizer_state in zip(context.optimizers, state["optimizers_state_dict"], strict=True):
        strategy.load_optimizer_state(optimizer, optimizer_state)
    for wrapped, scheduler_state in zip(context.lr_schedulers, state["lr_schedulers_state_dict"], strict=True):
        wrapped.scheduler.load_state_dict(scheduler_state)
    for scaler, scaler_state in zip(context.scalers, state["scalers_state_dict"], strict=True):
        scaler.load_state_dict(scaler_state)
    rank_states = state["rank_state"]
    is_same_world = len(rank_states) == context.distributed.size
    strategy.load_rank_state(rank_states[context.distributed.rank] if is_same_world else None)
    for name, callback in callbacks.items():
        if name in state["callbacks"]:
            callback.load_state_dict(state["callbacks"][name])


def restore_random(context: PyTorchTrialContext, state: dict[str, Any]) -> None:
    """In a world of another size the ranks start new streams, as theirs cannot be divided."""
    states = state["rng_state"]
    if len(states) == context.distributed.size:
        seed.restore(states[context.distributed.rank])


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """What a checkpoint's folder holds, its tensors on the CPU, after a check of every file against the manifest.

    `models_state_dict` lists the models' states in the order in which the trial wrapped them; each fits the user's
    bare model. Off the cluster and without a trial this is all that is needed to use a model.
    """
    directory = Path(path)
    verify(directory)
    return read(directory)


def read(directory: Path) -> dict[str, Any]:
    """Without checking the files, for callers who have."""
    state: dict[str, Any] = torch.load(directory / STATE_FILE, weights_only=True, map_location="cpu")
    return state


def metadata_of(context: PyTorchTrialContext, batches: int) -> dict[str, Any]:
    """What metadata.json says beside its manifest."""
    return {
        STEPS_COMPLETED: batches,
        "trial_type": "PyTorchTrial",
        "format": "pytorch",
        "gangline_version": gangline.__version__,
        "torch_version": torch.__version__,
        "parallelism": context.strategy.name,
        "world_size": context.distributed.size,
        "hparams": context.get_hparams(),
    }


def _load_model(context: PyTorchTrialContext, model: torch.nn.Module, model_state: dict[str, Any]) -> None:
    try:
        context.strategy.load_model_state(model, model_state)
    except RuntimeError as error:
        differences = [line.strip() for line in str(error).splitlines()[1:]]
        raise invalid(
            "checkpoint.other_model",
            f"the checkpoint holds another model than {type(model).__name__}: {' '.join(differences[:2])}",
        ) from error


def _check_counts(context: PyTorchTrialContext, state: Mapping[str, Any]) -> None:
    wrapped: dict[str, list[Any]] = {
        "models": context.models,
        "optimizers": context.optimizers,
        "lr_schedulers": context.lr_schedulers,
        "scalers": context.scalers,
    }
    for what, here in wrapped.items():
        saved = state[f"{what}_state_dict"]
        if len(saved) != len(here):
            raise invalid(
                "checkpoint.other_trial",
                f"the checkpoint holds {len(saved)} {what}, this trial has {len(here)}; it belongs to another trial",
            )


def _culprit(error: Exception) -> str:
    """torch names the refused type in the middle of its advice."""
    for line in str(error).splitlines():
        if "GLOBAL" in line or "Unsupported" in line:
            return line.strip()
    return str(error).splitlines()[0]
