"""Source for a checkpoint of Determined's trainer (0.17 to 0.38): one `state_dict.pth`, and small files beside it.

Owns the translation of its state into ours, and how its pickle is read. The pickle is read with weights_only: tensors,
plain values and arrays of numpy. A state with objects of other classes is refused, with the way to allow them.
"""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gangline.core.storage_access.storage import file_reader
from gangline.domain.storage.foreign_checkpoint import (
    STATE_FILE,
    DeterminedState,
    describe_determined,
    is_of_determined,
    read_metadata_file,
)
from gangline.errors import GanglineError, invalid
from gangline.pytorch.checkpoint.name import MODELS, OPTIMIZERS

_log = logging.getLogger("gangline")
_DDP_PREFIX = "module."
_LR_SCHEDULERS = "lr_schedulers_state_dict"
_LISTS = (MODELS, OPTIMIZERS, _LR_SCHEDULERS)


def is_determined_folder(directory: Path) -> bool:
    """Returns whether a folder is a checkpoint of Determined's trainer, imported or not. A folder whose metadata.json
    is damaged counts as one only where it has no manifest to compare with, so its own reader raises."""
    try:
        metadata = read_metadata_file(file_reader(directory))
    except GanglineError:
        return False
    return is_of_determined(metadata, has_state=(directory / STATE_FILE).is_file())


def describe_folder(directory: Path) -> DeterminedState:
    return describe_determined(file_reader(directory))


def read_state(directory: Path, is_trusted: bool = False) -> dict[str, Any]:
    """Returns the content of state_dict.pth on the CPU. is_trusted: unpickles objects of any class, which may run code
    of the file.

    Raises GanglineError `checkpoint.corrupt`, `checkpoint.not_plain` and `checkpoint.not_found`.
    """
    path = directory / STATE_FILE
    try:
        with torch.serialization.safe_globals(_numpy_globals()):
            state = torch.load(path, map_location="cpu", weights_only=not is_trusted)
    except pickle.UnpicklingError as error:
        raise _not_plain(path, error) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, IndexError, ModuleNotFoundError) as error:
        text = f"{path} cannot be read: {' '.join(str(error).split())[:200]}; use another checkpoint"
        raise invalid("checkpoint.corrupt", text) from error
    lacking = [key for key in _LISTS if not isinstance(state, dict) or not isinstance(state.get(key), list)]
    if lacking:
        raise invalid(
            "checkpoint.corrupt",
            f"{path} has no list {lacking[0]}, so it is no state that Determined 0.17 to 0.38 saved; read it with "
            "torch.load",
        )
    return dict(state)


def translate(state: Mapping[str, Any], described: DeterminedState) -> dict[str, Any]:
    """Returns the state in the form of our format 1, which has one file with everything."""
    if state.get("amp_state"):
        _log.warning("the checkpoint has a state of apex, which is left out: its loss scale is found again")
    scaler = state.get("scaler_state_dict")
    return {
        MODELS: [dict(model) for model in state[MODELS]],
        OPTIMIZERS: list(state[OPTIMIZERS]),
        _LR_SCHEDULERS: list(state[_LR_SCHEDULERS]),
        "scalers_state_dict": [scaler] if scaler else [],
        "callbacks": dict(state.get("callbacks") or {}),
        "rng_state": [translate_random(state.get("rng_state"))],
        "progress": _progress_of(described),
    }


def strip_prefix(saved: Mapping[str, Any], wanted: set[str]) -> str:
    """Returns the prefix of names that DistributedDataParallel added to a model's state; empty where there is none.
    wanted: the names in the model."""
    has_prefix = bool(saved) and all(name.startswith(_DDP_PREFIX) for name in saved)
    is_wanted = any(name.startswith(_DDP_PREFIX) for name in wanted)
    return _DDP_PREFIX if has_prefix and not is_wanted else ""


def translate_random(saved: Any) -> dict[str, Any] | None:
    """Returns the state of the generators as gangline.pytorch.data.seed keeps it; None where it lacks one of them."""
    names = ("cpu_rng_state", "np_rng_state", "random_rng_state")
    if not isinstance(saved, dict) or any(saved.get(name) is None for name in names):
        return None
    version, keys, gauss = saved["random_rng_state"]
    name, numbers, *position_and_gauss = saved["np_rng_state"]
    state = {
        "python": [version, list(keys), gauss],
        "numpy": [name, torch.from_numpy(np.asarray(numbers).astype(np.int64)), *position_and_gauss],
        "cpu": saved["cpu_rng_state"],
    }
    if saved.get("gpu_rng_state") is not None:
        state["cuda"] = saved["gpu_rng_state"]
    return state


def _progress_of(described: DeterminedState) -> dict[str, Any]:
    """Returns the loop's progress. Determined counts batches of all slots together. world_size: None stands for as many
    as train now."""
    size = described.global_batch_size
    return {
        "batches": described.batches,
        "epoch": 0,
        "offset": described.batches,
        "shift": 0,
        "batch_size": size,
        "world_size": None if size is None else 1,
        "best_validation": None,
        "newest_validation": described.last_validation,
    }


def _numpy_globals() -> list[Any]:
    """Returns the functions and classes with which numpy pickles arrays of numbers, under the names of numpy 1 and 2.
    The state of numpy's generator is such an array."""
    reconstruct: Any = np.zeros(0).__reduce__()[0]
    scalar: Any = np.float64(0).__reduce__()[0]
    modules = ("numpy.core.multiarray", "numpy._core.multiarray")
    types: list[Any] = [np.ndarray, np.dtype, *(type(np.dtype(code)) for code in "?bBhHiIlLqQefd")]
    return types + [
        (function, f"{module}.{function.__name__}") for module in modules for function in (reconstruct, scalar)
    ]


def _not_plain(path: Path, error: Exception) -> GanglineError:
    match = re.search(r"GLOBAL (\S+)", str(error))
    if match is None:
        return invalid("checkpoint.corrupt", f"{path} is no readable pickle; use another checkpoint")
    named = match[1]
    return invalid(
        "checkpoint.not_plain",
        f"{path} has an object of {named}, which is not loaded, because unpickling it may run code; if you trust the "
        f"file, call torch.serialization.add_safe_globals([{named.rpartition('.')[2]}]) before, or pass "
        "torch_load_kwargs={'weights_only': False} to load_trial_from_checkpoint_path",
    )
