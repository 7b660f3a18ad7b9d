"""No pickle between processes: which modules of the library and the services name one at all."""

from __future__ import annotations

import ast

from tests.support.source import SourceFile, list_imports, list_source_files

_PICKLES = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "multiprocessing"}
# The pickle in a checkpoint: `plain` makes it with torch and reads it back with weights_only, `metadata` makes torch's
# own classes alone of it, `determined` reads with weights_only, and `foreign_checkpoint` makes no class at all.
_OF_CHECKPOINTS = {
    "gangline/domain/storage/foreign_checkpoint.py",
    "gangline/pytorch/checkpoint/determined.py",
    "gangline/pytorch/checkpoint/metadata.py",
    "gangline/pytorch/checkpoint/plain.py",
}
# What torch.distributed unpickles: gather_object, broadcast_object_list and their kin, and a save that plans with them.
_OF_TORCH = ("_object", "_object_list")
_SAVES = {"save", "async_save", "save_state_dict"}


def _own() -> list[SourceFile]:
    return [file for file in list_source_files() if file.path.startswith(("gangline/", "services/"))]


def test_only_readers_of_checkpoints_import_pickle() -> None:
    paths = {file.path for file in _own() if any(name.split(".")[0] in _PICKLES for name in list_imports(file))}
    assert paths == _OF_CHECKPOINTS


def test_nobody_uses_the_object_collectives_of_torch() -> None:
    uses = [
        f"{file.path}: {node.attr}"
        for file in _own()
        if "_object" in file.text
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "dist"
        and node.attr.endswith(_OF_TORCH)
    ]
    assert uses == []


def test_nobody_saves_over_a_group_with_torch() -> None:
    paths = [
        file.path
        for file in _own()
        if "torch.distributed.checkpoint" in file.text
        for node in ast.walk(file.tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("torch.distributed.checkpoint")
        and any(alias.name in _SAVES for alias in node.names)
    ]
    assert paths == []
