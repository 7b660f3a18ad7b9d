"""Writes tensors with torch.distributed.checkpoint into a checkpoint's draft, on any storage.

Owns the folder of the tensors and the nesting of keys. Called in the saver's background thread.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import (
    FileSystemBase,
    FileSystemWriter,
    _StorageInfo,
    _StoragePrefix,
)
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import BytesIOWriteData, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from gangline.core.draft import CheckpointDraft
from gangline.core.encoding import let_travel
from gangline.core.together import through_first
from gangline.core.transport import Transport
from gangline.pytorch.checkpoint.name import Path

TENSORS_FOLDER = "tensors"
_TEMPORARY = ".tmp"
# Types in torch's plans, which ranks send to one another.
let_travel(
    *(SavePlan, WriteItem, WriteItemType, BytesIOWriteData, TensorWriteData, WriteResult),
    *(ChunkStorageMetadata, MetadataIndex, TensorProperties, _StorageInfo, _StoragePrefix),
)

# Restoring reads without a process group on purpose, so torch's warning about it says nothing new.
warnings.filterwarnings("ignore", message="torch.distributed is disabled", module="torch.distributed.checkpoint")


def write_tensors(
    draft: CheckpointDraft, tensors: Mapping[Path, torch.Tensor], transport: Transport, rank: int, size: int
) -> None:
    """Writes tensors. All ranks call it in step, each with its share; transport: over which they plan.

    The steps are those of torch.distributed.checkpoint.save, which would exchange its plans as pickles. Raises the
    first rank's error, GanglineError or RankError.
    """
    planner, writer = DefaultSavePlanner(), _DraftWriter(draft)
    plan_metadata: list[Metadata] = []

    def plan_own() -> SavePlan:
        planner.set_up_planner(_nest(tensors), writer.storage_meta(), is_coordinator=rank == 0)
        writer.set_up_storage_writer(rank == 0)
        return writer.prepare_local_plan(planner.create_local_plan())

    def plan_all(plans: list[SavePlan]) -> list[SavePlan]:
        plans, metadata = planner.create_global_plan(plans)
        plan_metadata.append(metadata)
        return writer.prepare_global_plan(plans)

    def write_own() -> list[WriteResult]:
        writing = writer.write_data(planner.finish_plan(plan), planner)
        writing.wait()
        return writing.value()

    def finish(results: list[list[WriteResult]]) -> list[None]:
        writer.finish(plan_metadata[0], results)
        return [None] * size

    plan = through_first(transport, size, plan_own, plan_all)
    through_first(transport, size, write_own, finish)


def _nest(tensors: Mapping[Path, torch.Tensor]) -> dict[str, Any]:
    """Returns dictionaries of dictionaries; a number in a path becomes a place in a list, as readers expect it."""
    nested: dict[str, Any] = {}
    lists: dict[str, dict[int, dict[str, Any]]] = {}
    for (list_name, number, *keys), tensor in tensors.items():
        place = lists.setdefault(str(list_name), {}).setdefault(int(number), {})
        for key in keys[:-1]:
            place = place.setdefault(str(key), {})
        place[str(keys[-1])] = tensor
    for list_name, by_number in lists.items():
        nested[list_name] = [by_number.get(number, {}) for number in range(max(by_number) + 1)]
    return nested


class _DraftWriter(FileSystemWriter):
    def __init__(self, draft: CheckpointDraft) -> None:
        # The draft's files are on the disk when they are closed, so torch need not sync them. No copies ahead: the
        # tensors are on the CPU already, and a copy would open the first GPU for every rank.
        super().__init__(TENSORS_FOLDER, sync_files=False, per_thread_copy_ahead=0)
        self.fs = _DraftFiles(draft)  # type: ignore[assignment]  # torch declares its own subclass
        self.path = TENSORS_FOLDER


class _DraftFiles(FileSystemBase):
    """File system to which files are written once, under their final names."""

    def __init__(self, draft: CheckpointDraft) -> None:
        self._draft = draft

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        assert mode == "wb"
        try:
            with self._draft.open(str(path).removesuffix(_TEMPORARY)) as stream:
                yield stream
        except OSError:
            raise
        except Exception as error:
            # The error is sent to the other ranks, and only a plain exception is sure to survive that.
            raise OSError(f"{type(error).__name__}: {error}") from error

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return str(PurePosixPath(path) / suffix)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        assert str(path).removesuffix(_TEMPORARY) == str(new_path)

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return str(path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Does nothing: the draft makes folders when needed."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return False

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        raise FileNotFoundError(path)
