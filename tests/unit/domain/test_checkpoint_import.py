"""What a folder is that a user imports, which id it gets, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gangline.domain.storage.checkpoint_import import (
    MOST_FILES,
    ImportedFile,
    check_import,
    import_id,
    plan_folder,
    steps_of,
)
from gangline.domain.storage.foreign_checkpoint import STATE_FILE
from gangline.domain.storage.manifest import StoredFile, write_document
from gangline.errors import GanglineError

_DIGEST = "ab" * 32


def _file(path: str, **changes: Any) -> ImportedFile:
    return ImportedFile(**{"path": path, "bytes": 3, "sha256": _DIGEST, **changes})


def test_own_checkpoint_keeps_its_manifest_and_gets_a_foreign_trial() -> None:
    """A trial of this cluster may have the same id, and must not continue from the position of the other one."""
    document = write_document({"steps_completed": 4, "trial_id": "7.1"}, {"a": StoredFile(3, _DIGEST)})
    plan = plan_folder({"metadata.json": document}.get, ["metadata.json", "a", "stray"], STATE_FILE)
    assert plan.paths == ("a",)
    assert plan.expected == {"a": StoredFile(3, _DIGEST)}
    assert plan.metadata == {"steps_completed": 4, "trial_id": "imported:7.1", "imported": "gangline"}


def test_checkpoint_of_determined() -> None:
    files = {"metadata.json": b'{"steps_completed": 8, "determined_version": "0.38.1"}'}
    plan = plan_folder(files.get, ["metadata.json", STATE_FILE, "code/model_def.py"], STATE_FILE)
    assert plan.has_state
    assert plan.paths == ("code/model_def.py", STATE_FILE)
    assert plan.metadata["state_format"] == "determined"
    assert (plan.metadata["determined_version"], steps_of(plan.metadata)) == ("0.38.1", 8)


def test_checkpoint_of_a_script() -> None:
    plan = plan_folder({"metadata.json": b'{"steps_completed": 5}'}.get, ["metadata.json", "w/x.bin"], STATE_FILE)
    assert (plan.paths, plan.has_state, plan.metadata) == (
        ("w/x.bin",),
        False,
        {"steps_completed": 5, "imported": "core"},
    )


def test_other_folders_are_no_checkpoints() -> None:
    with pytest.raises(GanglineError, match=r"neither metadata\.json nor state_dict\.pth") as caught:
        plan_folder(lambda name: None, ["train.py"], STATE_FILE)
    assert caught.value.code == "checkpoint.not_one"


def test_id_is_of_the_content() -> None:
    files = [_file("a"), _file("b")]
    wanted = import_id('{"x": 1, "y": 2}', files)
    assert import_id('{"y": 2, "x": 1}', files[::-1]) == wanted
    others = {
        import_id('{"x": 2, "y": 2}', files),
        import_id('{"x": 1, "y": 2}', [_file("a"), _file("c")]),
        import_id('{"x": 1, "y": 2}', [_file("a"), _file("b", sha256="cd" * 32)]),
    }
    assert len(others | {wanted}) == 4
    assert [len(part) for part in wanted.split("-")] == [8, 4, 4, 4, 12]


@pytest.mark.parametrize(
    "path",
    ["", "/a", "../a", "a/../b", "a//b", "./a", "a\\b", "a\nb", "metadata.json", ".partial-x/a", "x" * 256, "a/"],
)
def test_paths_that_are_refused(path: str) -> None:
    with pytest.raises(GanglineError, match="cannot be the path") as caught:
        check_import("n", "{}", [_file(path)])
    assert caught.value.code == "checkpoint.path"


@pytest.mark.parametrize(
    ("name", "metadata", "files", "words"),
    [
        ("", "{}", [], "give a name"),
        ("a\nb", "{}", [], "give a name"),
        ("n", json.dumps({"x": "y" * 100_001}), [], "at most 100000"),
        ("n", "[]", [], "expected a JSON object"),
        ("n", "{}", [_file("a"), _file("a")], "twice"),
        ("n", "{}", [_file("a/b"), _file("a")], "twice"),
        ("n", "{}", [_file("a", bytes=-1)], "no size"),
        ("n", "{}", [_file("a", sha256="no")], "no size"),
        ("n", "{}", [_file(f"f{number}") for number in range(MOST_FILES + 1)], "at most 5000 files"),
    ],
)
def test_imports_that_are_refused(name: str, metadata: str, files: list[ImportedFile], words: str) -> None:
    with pytest.raises(GanglineError, match=words):
        check_import(name, metadata, files)


@pytest.mark.parametrize("steps", [None, "8", -1, 1.5, True, 2**60])
def test_steps_that_are_no_count(steps: Any) -> None:
    assert steps_of({"steps_completed": steps}) == 0
