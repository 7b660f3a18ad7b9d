"""PURE: recognises a checkpoint's folder that Gangline did not write, and describes it from its small files.

Two layouts exist beside ours. Determined's trainer (0.17 to 0.38) writes `state_dict.pth` with `load_data.json`,
`metadata.json`, and `trial_state.pkl` or `workload_sequencer.pkl`. A script with the Core API writes any files and
`metadata.json`. Called by the library, which loads such a folder, and by the client, which imports it.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gangline.domain.experiment import METADATA_FILE
from gangline.domain.storage.manifest import MANIFEST_KEY
from gangline.errors import GanglineError, invalid

# Key of metadata.json that names the layout of a trial's state: a number for ours, or DETERMINED.
STATE_FORMAT_KEY = "state_format"
DETERMINED = "determined"
# Key of the id of the trial that saved the checkpoint; its value is empty off the cluster, where trials have no id.
TRIAL_ID = "trial_id"
STATE_FILE = "state_dict.pth"
CODE_FOLDER = "code"
LOAD_FILE = "load_data.json"
# From 0.21 on, and before. Each is the pickle of a dictionary of numbers.
_PROGRESS_FILES = ("trial_state.pkl", "workload_sequencer.pkl")
_BATCH_KEYS = ("batches_trained", "steps_completed", "latest_batch")
_FOREIGN = "imported:"
# Returns the content of a file of the folder, or None where there is no such file.
ReadFile = Callable[[str], bytes | None]


@dataclass(frozen=True, slots=True)
class DeterminedState:
    """Describes a checkpoint of Determined's trainer."""

    batches: int = 0  # batches trained until it was saved
    trial_id: str = ""  # Determined's id of the trial; empty if unknown
    trial_class: str = ""  # as "module:Class"; empty if unknown
    last_validation: int = -1  # batch of the newest validation; -1 without one
    version: str = ""  # version of Determined; empty if unknown
    hparams: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)  # configuration of the experiment

    @property
    def global_batch_size(self) -> int | None:
        size = self.hparams.get("global_batch_size")
        return size if type(size) is int and size > 0 else None


def read_metadata_file(read: ReadFile) -> dict[str, Any] | None:
    """Returns the content of metadata.json; None where there is none. Raises GanglineError `checkpoint.corrupt`."""
    return _read_object(read, METADATA_FILE)


def is_of_determined(metadata: Mapping[str, Any] | None, *, has_state: bool) -> bool:
    """Returns whether a folder has the layout of Determined's trainer. metadata: of its metadata.json, which is
    Gangline's own after an import. has_state: whether it has STATE_FILE."""
    if metadata is not None and MANIFEST_KEY in metadata:
        return metadata.get(STATE_FORMAT_KEY) == DETERMINED
    return has_state


def describe_determined(read: ReadFile) -> DeterminedState:
    """Describes a checkpoint of Determined's trainer. Raises GanglineError `checkpoint.corrupt` for a file that is
    damaged, and `checkpoint.other_framework` for a trial of another framework."""
    metadata, loading = _read_object(read, METADATA_FILE) or {}, _read_object(read, LOAD_FILE)
    _check_framework(metadata, loading or {})
    # Until 0.17 only a download wrote a metadata.json, with what load_data.json has since.
    given = metadata if loading is None else loading
    config = _object_of(given, "experiment_config")
    entrypoint = config.get("entrypoint") if loading is None else loading.get("trial_cls_spec")
    progress = _read_progress(read)
    inner = _object_of(metadata, "metadata")
    batches = [_count(values.get(key)) for values in (progress, metadata, inner) for key in _BATCH_KEYS]
    trial_id = progress.get("trial_id") or metadata.get("trial_id")
    last_validation = progress.get("last_val")
    return DeterminedState(
        batches=next((each for each in batches if each is not None), 0),
        trial_id=str(trial_id) if trial_id else "",
        trial_class=entrypoint if isinstance(entrypoint, str) else "",
        last_validation=last_validation if type(last_validation) is int and last_validation > 0 else -1,
        version=str(metadata.get("determined_version") or ""),
        hparams=_object_of(given, "hparams"),
        config=config,
    )


def mark_foreign(trial_id: str) -> str:
    """Returns the id under which another cluster's trial is known here, which no trial of this one has."""
    return trial_id if trial_id.startswith(_FOREIGN) else f"{_FOREIGN}{trial_id}"


def _check_framework(metadata: Mapping[str, Any], loading: Mapping[str, Any]) -> None:
    trial_type, framework = loading.get("trial_type", "PyTorchTrial"), str(metadata.get("framework") or "torch")
    if trial_type != "PyTorchTrial" or not framework.startswith("torch"):
        name = trial_type if trial_type != "PyTorchTrial" else framework
        raise invalid(
            "checkpoint.other_framework",
            f"the checkpoint is of a {name}, and Gangline trains with PyTorch alone; read its files with the framework "
            "that wrote them",
        )


def _read_object(read: ReadFile, name: str) -> dict[str, Any] | None:
    content = read(name)
    if content is None:
        return None
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _corrupt(name, f"is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise _corrupt(name, "is no JSON object")
    return value


def _read_progress(read: ReadFile) -> dict[str, Any]:
    for name in _PROGRESS_FILES:
        content = read(name)
        if content is None:
            continue
        try:
            value = _PlainUnpickler(io.BytesIO(content)).load()
        except Exception as error:  # noqa: BLE001  a damaged pickle raises whatever its bytes lead to
            raise _corrupt(name, f"is no pickle of plain values: {error}") from None
        if not isinstance(value, dict):
            raise _corrupt(name, f"has a {type(value).__name__}, not a dictionary")
        return value
    return {}


class _PlainUnpickler(pickle.Unpickler):
    """Reads numbers, texts, lists and dictionaries. A pickle that names a class or a function is refused, so that it
    cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _object_of(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = values.get(key)
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _corrupt(name: str, what: str) -> GanglineError:
    return invalid("checkpoint.corrupt", f"{name} {what}; use another checkpoint")
