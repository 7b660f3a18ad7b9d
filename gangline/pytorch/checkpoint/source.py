"""Source: a checkpoint's folder on this machine, for restoring from it.

Owns the two layouts of Gangline. In format 2 any number of ranks read a part of the tensors. Format 1, of the first
version, is one file with everything, and a checkpoint of Determined is read as such a file. Files have been compared
with the manifest before, where there is one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor, distribute_tensor

from gangline.core.storage_access.storage import has_manifest, verify
from gangline.core.storage_access.storage import read_metadata as read_manifest
from gangline.domain.storage.foreign_checkpoint import STATE_FILE, STATE_FORMAT_KEY, TRIAL_ID, mark_foreign
from gangline.errors import invalid
from gangline.pytorch.checkpoint import determined, metadata
from gangline.pytorch.checkpoint.capture import (
    MODEL_VALUES,
    OPTIMIZER_VALUES,
    TRAINER_FILE,
    OptimizerValues,
    rank_file,
)
from gangline.pytorch.checkpoint.name import MODELS, OPTIMIZERS, STATE, join, model_path, state_path
from gangline.pytorch.checkpoint.writer import TENSORS_FOLDER
from gangline.pytorch.parallel.shared.ownership import plain_name, plain_names

STATE_FORMAT = 2


@dataclass(frozen=True, slots=True)
class Described:
    """Shape and type of a tensor that a source can load."""

    shape: torch.Size
    dtype: torch.dtype


class Source(ABC):
    """Content of a checkpoint."""

    trial_id: str  # id of the trial that saved it; empty if not known
    trainer: dict[str, Any]  # values that all ranks share
    ranks: list[dict[str, Any]]  # each rank's own values, by rank
    tensors: Mapping[str, Described]  # descriptions by joined path

    def align(self, index: int, names: set[str]) -> None:  # noqa: B027  most sources have nothing to align
        """Renames the tensors of a model to the names that the trial's model has, where a wrapper changed them all."""

    @abstractmethod
    def load(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Fills tensors in place, and of a DTensor this rank's part. Any rank may call it by itself."""

    def optimizer_values(self, number: int) -> dict[str, dict[str, Any]]:
        """Returns an optimizer's values beside tensors, by parameter, from all ranks that kept some."""
        values_by_parameter: dict[str, dict[str, Any]] = {}
        for rank in self.ranks:
            values_by_parameter |= rank.get(OPTIMIZER_VALUES, {}).get(number, {})
        return values_by_parameter

    def state_tensors(self, number: int) -> dict[str, dict[str, Described]]:
        """Returns the tensors of an optimizer's state: parameter -> name in its state -> tensor."""
        prefix = join((OPTIMIZERS, number, STATE, ""))
        tensors_by_parameter: dict[str, dict[str, Described]] = {}
        for path, described in self.tensors.items():
            if path.startswith(prefix):
                parameter, _, name = path.removeprefix(prefix).rpartition(".")
                tensors_by_parameter.setdefault(parameter, {})[name] = described
        return tensors_by_parameter


def open_source(directory: Path, is_trusted: bool = False) -> Source:
    """Opens a checkpoint's folder. is_trusted: unpickles any class from a checkpoint of Determined. Raises
    GanglineError `checkpoint.newer_format`, and those of reading one of Determined."""
    if determined.is_determined_folder(directory):
        return _DeterminedSource(directory, is_trusted)
    manifest = read_manifest(directory)
    state_format = manifest.get(STATE_FORMAT_KEY, 1)
    if type(state_format) is not int or state_format > STATE_FORMAT:
        raise invalid(
            "checkpoint.newer_format",
            f"the checkpoint holds a trial's state in format {state_format}, this version of Gangline reads up to "
            f"{STATE_FORMAT}; use a newer one",
        )
    source = _DividedSource(directory) if state_format == STATE_FORMAT else _WholeSource(_load(directory / STATE_FILE))
    source.trial_id = manifest.get(TRIAL_ID, "")
    return source


def open_checked(directory: Path, is_trusted: bool = False) -> Source:
    """Compares a folder's files with its manifest and opens it. A folder as Determined wrote it has no manifest."""
    if not is_plain_determined(directory):
        verify(directory)
    return open_source(directory, is_trusted)


def is_plain_determined(directory: Path) -> bool:
    """Returns whether a folder is a checkpoint of Determined that was not imported."""
    return determined.is_determined_folder(directory) and not has_manifest(directory)


class _DividedSource(Source):
    def __init__(self, directory: Path) -> None:
        self._folder = directory / TENSORS_FOLDER
        self.trainer = _load(directory / TRAINER_FILE)
        count = sum(1 for _ in directory.glob(rank_file(-1).replace("-1", "*")))
        self.ranks = [_load(directory / rank_file(rank)) for rank in range(count)]
        entries = metadata.read_metadata(self._folder).state_dict_metadata
        # Earlier versions kept the names of compiled models.
        self._saved_paths = {plain_name(path): path for path in entries}
        self.tensors = {
            plain_name(path): Described(entry.size, entry.properties.dtype)
            for path, entry in entries.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        self._rename_values()

    def _rename_values(self) -> None:
        for rank in self.ranks:
            for values, others in zip(self.trainer[MODEL_VALUES], rank.get(MODEL_VALUES, []), strict=False):
                values |= {name: value for name, value in others.items() if name not in values}
        self.trainer[MODEL_VALUES] = [plain_names(values) for values in self.trainer[MODEL_VALUES]]
        for optimizer in self.trainer[OPTIMIZERS]:
            for group in optimizer["param_groups"]:
                group["params"] = [plain_name(name) for name in group["params"]]
        for rank in self.ranks:
            values = rank.get(OPTIMIZER_VALUES, {})
            rank[OPTIMIZER_VALUES] = {number: plain_names(entries) for number, entries in values.items()}

    def load(self, targets: Mapping[str, torch.Tensor]) -> None:
        load(
            {self._saved_paths[path]: target for path, target in targets.items()},
            storage_reader=metadata.TensorReader(self._folder),
            planner=DefaultLoadPlanner(flatten_state_dict=False),
            no_dist=True,
        )


class _WholeSource(Source):
    """Reads format 1, in which optimizers number their parameters in the order of their groups."""

    def __init__(self, state: dict[str, Any]) -> None:
        models, optimizers = state.pop(MODELS), state.pop(OPTIMIZERS)
        everything = {
            model_path(index, plain_name(name)): value
            for index, model in enumerate(models)
            for name, value in model.items()
        }
        values: OptimizerValues = {}
        for number, optimizer in enumerate(optimizers):
            for position, entries in optimizer[STATE].items():
                everything |= {state_path(number, str(position), key): value for key, value in entries.items()}
                plain = {key: value for key, value in entries.items() if not isinstance(value, torch.Tensor)}
                values.setdefault(number, {})[str(position)] = plain
        self._content = {join(path): value for path, value in everything.items() if isinstance(value, torch.Tensor)}
        self.tensors = {path: Described(value.shape, value.dtype) for path, value in self._content.items()}
        own = [{"rng_state": rng_state} for rng_state in state.pop("rng_state")]
        for rank, entry in enumerate(state.pop("rank_state", None) or []):
            own[rank]["rank_state"] = entry
        self.ranks = [
            {**rank_entry, OPTIMIZER_VALUES: values if rank == 0 else {}} for rank, rank_entry in enumerate(own)
        ]
        self.trainer = {
            **state,
            "num_models": len(models),
            MODEL_VALUES: [
                plain_names({name: value for name, value in model.items() if not isinstance(value, torch.Tensor)})
                for model in models
            ],
            OPTIMIZERS: [{key: value for key, value in optimizer.items() if key != STATE} for optimizer in optimizers],
        }

    def load(self, targets: Mapping[str, torch.Tensor]) -> None:
        for path, target in targets.items():
            content = self._content[path]
            if isinstance(target, DTensor):
                moved = content.to(target.device_mesh.device_type)
                part = distribute_tensor(moved, target.device_mesh, target.placements, src_data_rank=None)
                target.to_local().copy_(part.to_local())
            else:
                target.copy_(content)


class _DeterminedSource(_WholeSource):
    """Reads a checkpoint of Determined's trainer. An imported one is of another trial than any of this cluster; a plain
    folder is of the trial that reads it, as a checkpoint off the cluster is."""

    def __init__(self, directory: Path, is_trusted: bool) -> None:
        described = determined.describe_folder(directory)
        super().__init__(determined.translate(determined.read_state(directory, is_trusted), described))
        # Without a state of all generators the rank keeps its own.
        self.ranks = [{key: value for key, value in rank.items() if value is not None} for rank in self.ranks]
        self.trial_id = mark_foreign(described.trial_id)

    def align(self, index: int, names: set[str]) -> None:
        start = join((MODELS, index, ""))
        own = {path.removeprefix(start): path for path in self.tensors if path.startswith(start)}
        prefix = determined.strip_prefix({**own, **self.trainer[MODEL_VALUES][index]}, names)
        if not prefix:
            return
        moved = {path: start + name.removeprefix(prefix) for name, path in own.items()}
        self._content = {moved.get(path, path): value for path, value in self._content.items()}
        self.tensors = {moved.get(path, path): described for path, described in self.tensors.items()}
        self.trainer[MODEL_VALUES][index] = {
            name.removeprefix(prefix): value for name, value in self.trainer[MODEL_VALUES][index].items()
        }


def _load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    return content
