"""Loads a trained trial from a checkpoint's folder in a separate process, for evaluation, inference or inspection.

It needs no cluster and no other rank, whatever strategy wrote the checkpoint. Checkpoints have no code, so the caller
names the trial class; Determined's function of the same name does without.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from gangline.core.context import alone
from gangline.core.storage import verify
from gangline.errors import invalid
from gangline.pytorch.checkpoint import open_source, restore
from gangline.pytorch.group import choose_device
from gangline.pytorch.parallel import choose_strategy
from gangline.pytorch.setup import make_setting
from gangline.pytorch.trial.context import PyTorchTrialContext
from gangline.pytorch.trial.trial import PyTorchTrial

T = TypeVar("T", bound=PyTorchTrial)
# Determined once took torch.load's options by name. Code that still passes them must run.
_TORCH_LOAD_OPTIONS = ("map_location", "pickle_module", "weights_only", "mmap")


class CheckpointLoadContext(PyTorchTrialContext):
    """A context of this process alone, in which a trial is made to evaluate or inspect its model. It trains nothing and
    reports nothing. hparams, exp_conf: the hyperparameters and the configuration that the trial reads."""

    def __init__(self, hparams: Mapping[str, Any] | None = None, exp_conf: Mapping[str, Any] | None = None) -> None:
        setting = make_setting(None, hparams or {}, exp_conf or {}, aggregation_frequency=1)
        device = choose_device()
        strategy = choose_strategy(setting.parallelism, 1, device, setting.optimizations)
        super().__init__(alone(), setting, strategy, device, writes_tensorboard=False)


def load_trial_from_checkpoint_path(
    path: str | Path,
    trial_class: type[T] | None = None,
    trial_kwargs: Mapping[str, Any] | None = None,
    torch_load_kwargs: Mapping[str, Any] | None = None,
    *,
    exp_conf: Mapping[str, Any] | None = None,
    **options: Any,
) -> T:
    """Returns a trial made with the checkpoint's hyperparameters, with the saved states of its models, optimizers,
    schedulers and scalers. Every file is compared with the manifest first.

    path: a checkpoint's folder, as `gangline checkpoint download` writes it. trial_class: required. trial_kwargs: its
    arguments after the context. exp_conf: the part of the experiment's configuration that the trial reads, because
    checkpoints do not have it. It includes `optimizations` with mixed_precision fp16, whose scaler is part of the
    state. torch_load_kwargs, and torch.load's options by name: accepted, no effect. Only tensors and plain values are
    unpickled, and models are loaded to this process's GPU where it has one. Callbacks are not made.

    Raises GanglineError `checkpoint.no_code` without a trial class, and the errors of reading a checkpoint:
    `checkpoint.not_found`, `corrupt`, `newer_format`, `other_trial`, `other_model`.
    """
    _check_options(options)
    directory = Path(path)
    if trial_class is None:
        raise invalid(
            "checkpoint.no_code",
            f"checkpoints hold no code, so nothing says which trial wrote {directory}; pass trial_class=, or use "
            "load_checkpoint for the states alone",
        )
    hparams = verify(directory).get("hparams") or {}
    source = open_source(directory)
    context = CheckpointLoadContext(hparams, exp_conf)
    trial = trial_class(context, **(trial_kwargs or {}))
    restore(context, {}, source)
    return trial


def _check_options(options: Mapping[str, Any]) -> None:
    unknown = sorted(set(options) - set(_TORCH_LOAD_OPTIONS))
    if unknown:
        raise invalid(
            "pytorch.load_option",
            f"load_trial_from_checkpoint_path has no argument {unknown[0]}; it takes trial_class, trial_kwargs, "
            f"torch_load_kwargs, exp_conf and torch.load's {', '.join(_TORCH_LOAD_OPTIONS)}",
        )
