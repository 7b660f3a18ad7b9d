"""The folder of a checkpoint as it is read for an import: plain files only, and none that is damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gangline.client.transfer.checkpoint_folder import read_checkpoint_folder
from gangline.domain.storage.manifest import StoredFile, write_document
from gangline.errors import GanglineError
from tests.support.determined_checkpoint import NEWEST, unpack


def _code_of(folder: Path) -> str:
    with pytest.raises(GanglineError) as caught:
        read_checkpoint_folder(folder)
    return caught.value.code


def test_same_folder_has_the_same_id(tmp_path: Path) -> None:
    first = read_checkpoint_folder(unpack(NEWEST, tmp_path / "a"))
    again = read_checkpoint_folder(unpack(NEWEST, tmp_path / "b"), "better")
    assert first.checkpoint_id == again.checkpoint_id
    assert (first.name, again.name) == ("a", "better")
    assert b"".join(first.chunks()) == b"".join((first.folder / file.path).read_bytes() for file in first.files)
    (tmp_path / "b" / "code" / "model_def.py").write_text("other")
    assert read_checkpoint_folder(tmp_path / "b").checkpoint_id != first.checkpoint_id


def test_links_and_devices_are_refused(tmp_path: Path) -> None:
    folder = unpack(NEWEST, tmp_path / "c")
    (folder / "secret").symlink_to("/etc/passwd")
    assert _code_of(folder) == "checkpoint.path"
    (folder / "secret").unlink()
    (folder / "all").symlink_to("/etc", target_is_directory=True)
    assert _code_of(folder) == "checkpoint.path"
    (folder / "all").unlink()
    os.mkfifo(folder / "pipe")
    assert _code_of(folder) == "checkpoint.path"


def test_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = unpack(NEWEST, tmp_path / "c")
    os.close(os.open(os.fsencode(folder) + b"/\xff", os.O_CREAT))
    assert _code_of(folder) == "checkpoint.path"


@pytest.mark.parametrize("cut", [0, 100, 9_000])
def test_damaged_state_is_refused(cut: int, tmp_path: Path) -> None:
    folder = unpack(NEWEST, tmp_path / "c")
    path = folder / "state_dict.pth"
    content = bytearray(path.read_bytes())
    if cut == 9_000:
        content[cut] ^= 1
    path.write_bytes(content if cut == 9_000 else content[:cut])
    assert _code_of(folder) == "checkpoint.corrupt"


def test_own_checkpoint_is_compared_with_its_manifest(tmp_path: Path) -> None:
    digest = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
    (tmp_path / "metadata.json").write_bytes(write_document({"steps_completed": 1}, {"a": StoredFile(3, digest)}))
    assert _code_of(tmp_path) == "checkpoint.corrupt"
    (tmp_path / "a").write_bytes(b"foo")
    (tmp_path / "stray").write_bytes(b"x")
    assert [file.path for file in read_checkpoint_folder(tmp_path).files] == ["a"]
    (tmp_path / "a").write_bytes(b"bar")
    assert _code_of(tmp_path) == "checkpoint.corrupt"


def test_folder_that_is_none(tmp_path: Path) -> None:
    assert _code_of(tmp_path / "nothing") == "checkpoint.no_folder"
    assert _code_of(tmp_path) == "checkpoint.not_one"


def test_file_that_changes_while_it_is_sent(tmp_path: Path) -> None:
    files = read_checkpoint_folder(unpack(NEWEST, tmp_path / "c"))
    (tmp_path / "c" / "load_data.json").write_text("{}")
    with pytest.raises(GanglineError, match="changed while it was sent"):
        list(files.chunks())
