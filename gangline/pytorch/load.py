"""Loads a trained trial from a checkpoint's folder in a separate process, for evaluation, inference or inspection.

It needs no cluster and no other rank, whatever strategy wrote the checkpoint. Gangline's checkpoints have no code, so
the caller names the trial class. Those of Determined have a folder `code`, from which the class is imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from gangline import alias
from gangline.core.context import alone
from gangline.core.storage_access.storage import read_metadata
from gangline.domain.storage.foreign_checkpoint import CODE_FOLDER, DeterminedState
from gangline.errors import GanglineError, invalid
from gangline.pytorch.checkpoint import open_checked, restore
from gangline.pytorch.checkpoint.determined import describe_folder, is_determined_folder
from gangline.pytorch.group import choose_device
from gangline.pytorch.parallel import choose_strategy
from gangline.pytorch.trial.context import PyTorchTrialContext
from gangline.pytorch.trial.setting import make_setting
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

    path: a checkpoint's folder, as `gangline checkpoint download` writes it, or as Determined 0.17 to 0.38 does.
    trial_class: required, but for a checkpoint of Determined, whose folder `code` is then imported and so runs.
    trial_kwargs: its arguments after the context. exp_conf: the part of the experiment's configuration that the trial
    reads; Gangline's checkpoints do not have it, those of Determined do. It includes `optimizations` with
    mixed_precision fp16, whose scaler is part of the state. torch_load_kwargs, and torch.load's options by name: only
    `weights_only=False` has an effect, and only for a checkpoint of Determined: it unpickles objects of any class,
    which may run code of the file. Otherwise only tensors and plain values are unpickled. Models are loaded to this
    process's GPU where it has one. Callbacks are not made.

    Raises GanglineError `checkpoint.no_code` without a trial class, `checkpoint.code` where the class cannot be
    imported, and the errors of reading a checkpoint: `checkpoint.not_found`, `corrupt`, `newer_format`, `not_plain`,
    `other_trial`, `other_model`.
    """
    _check_options(options)
    directory = Path(path)
    hparams: Mapping[str, Any]
    if is_determined_folder(directory):
        is_trusted = {**(torch_load_kwargs or {}), **options}.get("weights_only") is False
        described = describe_folder(directory)
        hparams, config = described.hparams, described.config if exp_conf is None else exp_conf
        source = open_checked(directory, is_trusted)
        chosen = trial_class or cast("type[T]", _import_class(directory, described))
    else:
        if trial_class is None:
            raise invalid(
                "checkpoint.no_code",
                f"checkpoints hold no code, so nothing says which trial wrote {directory}; pass trial_class=, or use "
                "load_checkpoint for the states alone",
            )
        source, chosen, config = open_checked(directory), trial_class, exp_conf or {}
        hparams = read_metadata(directory).get("hparams") or {}
    context = CheckpointLoadContext(hparams, config)
    trial = chosen(context, **(trial_kwargs or {}))
    restore(context, {}, source)
    return trial


def _import_class(directory: Path, described: DeterminedState) -> type[PyTorchTrial]:
    """Imports the trial's class from the checkpoint's own code. Raises GanglineError `checkpoint.no_code` and
    `checkpoint.code`."""
    module_name, _, class_name = described.trial_class.partition(":")
    code = directory / CODE_FOLDER
    if not module_name or not class_name or not code.is_dir():
        raise invalid(
            "checkpoint.no_code",
            f"{directory} does not tell which trial wrote it, or lacks its code; pass trial_class=",
        )
    alias.install()
    try:
        with _first_on_path(code, module_name.partition(".")[0]):
            found: Any = importlib.import_module(module_name)
            for name in class_name.split("."):
                found = getattr(found, name)
    except Exception as error:
        raise _unusable(code, described.trial_class, f"{type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, PyTorchTrial)):
        raise _unusable(code, described.trial_class, "it is no PyTorchTrial of Gangline")
    return found


@contextmanager
def _first_on_path(code: Path, root: str) -> Iterator[None]:
    """Puts a folder first on the import path. A module of the same name that was imported from elsewhere steps aside
    meanwhile."""
    place = str(code.resolve())
    aside = {name: module for name, module in sys.modules.items() if name == root or name.startswith(f"{root}.")}
    for name in aside:
        del sys.modules[name]
    sys.path.insert(0, place)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(place)
        sys.modules.update(aside)


def _unusable(code: Path, trial_class: str, reason: str) -> GanglineError:
    return invalid("checkpoint.code", f"{trial_class} cannot be imported from {code}: {reason}; pass trial_class=")


def _check_options(options: Mapping[str, Any]) -> None:
    unknown = sorted(set(options) - set(_TORCH_LOAD_OPTIONS))
    if unknown:
        raise invalid(
            "pytorch.load_option",
            f"load_trial_from_checkpoint_path has no argument {unknown[0]}; it takes trial_class, trial_kwargs, "
            f"torch_load_kwargs, exp_conf and torch.load's {', '.join(_TORCH_LOAD_OPTIONS)}",
        )
