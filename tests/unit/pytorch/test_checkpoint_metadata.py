"""The description of a checkpoint's tensors is a pickle from anywhere: what it may make, and what not."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata

from gangline.errors import GanglineError
from gangline.pytorch.checkpoint.metadata import read_metadata


class _Call:
    """Pickled as a call, as a pickle from elsewhere may hold it."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def _read(folder: Path, planner_data: Any) -> Metadata:
    (folder / ".metadata").write_bytes(pickle.dumps(Metadata({}, planner_data), protocol=4))
    return read_metadata(folder)


def test_members_of_enumerations_as_python_3_11_2_wrote_them(tmp_path: Path) -> None:
    member = _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT
    assert _read(tmp_path, _Call(getattr, _MEM_FORMAT_ENCODING, member.name)).planner_data is member


@pytest.mark.parametrize(
    "evil", [_Call(os.getcwd), _Call(getattr, Metadata, "__init__")], ids=["function", "attribute of a class"]
)
def test_nothing_else_is_called(tmp_path: Path, evil: Any) -> None:
    with pytest.raises(GanglineError, match="does not describe tensors"):
        _read(tmp_path, evil)


def test_nothing_is_reached_through_a_module_that_may_be_named(tmp_path: Path) -> None:
    name = b"os.system"
    module = filesystem.__name__.encode()
    pickled = b"\x80\x04\x8c" + bytes([len(module)]) + module + b"\x8c" + bytes([len(name)]) + name + b"\x93."
    (tmp_path / ".metadata").write_bytes(pickled)
    with pytest.raises(GanglineError, match=r"it names torch\.distributed\.checkpoint\.filesystem\.os\.system"):
        read_metadata(tmp_path)
