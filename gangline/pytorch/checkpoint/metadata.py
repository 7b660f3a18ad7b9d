"""Reads the tensor metadata of torch.distributed.checkpoint without running code that a file may contain.

The metadata is a pickle. Only the classes of tensor metadata are made; a file that names anything else is refused. A
checkpoint from elsewhere can therefore be read as safely as with weights_only.
"""

from __future__ import annotations

import pickle
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from gangline.errors import invalid

# Modules whose dataclasses and enumerations the metadata may name, and other names that it may contain.
_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_MORE = {("torch", "Size"), ("torch.serialization", "_get_layout"), ("collections", "OrderedDict")}


class TensorReader(FileSystemReader):
    """Reads the folder of the tensors with the safe unpickler below."""

    def read_metadata(self, *arguments: Any, **options: Any) -> Metadata:
        metadata = read_metadata(Path(self.path))
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata


def read_metadata(folder: Path) -> Metadata:
    """Returns the metadata of a folder. Raises GanglineError `checkpoint.corrupt` where the file is no tensor
    metadata."""
    path = folder / ".metadata"
    try:
        with path.open("rb") as file:
            metadata = _Unpickler(file).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError) as error:
        raise invalid("checkpoint.corrupt", f"{path} does not describe tensors: {error}; use another checkpoint") from (
            error
        )
    if not isinstance(metadata, Metadata):
        raise invalid("checkpoint.corrupt", f"{path} holds a {type(metadata).__name__}; use another checkpoint")
    return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            # Python 3.11 up to 3.11.3 pickled the members of enumerations this way.
            return _member
        if (module, name) in _MORE or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        named_class = super().find_class(module, name) if module in _MODULES and "." not in name else None
        if isinstance(named_class, type) and (is_dataclass(named_class) or issubclass(named_class, Enum)):
            return named_class
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _member(enum_type: object, name: str) -> Enum:
    if isinstance(enum_type, type) and issubclass(enum_type, Enum) and name in enum_type.__members__:
        return enum_type.__members__[name]
    raise pickle.UnpicklingError(f"it takes {name!r} of {enum_type!r}")
