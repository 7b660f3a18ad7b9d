"""A storage folder in which trials put links, pipes and deep folders: the gateway reads regular files alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gangline.errors import GanglineError
from services.gateway.storage import local_tree
from services.gateway.storage import storage as storage_module
from services.gateway.storage.storage import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    own = tmp_path / "storage/checkpoints/mine"
    own.mkdir(parents=True)
    (own / "weights").write_bytes(b"of the trial")
    (tmp_path / "storage/code").mkdir()
    (tmp_path / "storage/code/archive").write_text("of another user")
    (tmp_path / "secret").write_text("of the operator")
    return Storage(f"file://{tmp_path / 'storage'}")


def read(storage: Storage, path: str) -> bytes:
    return b"".join(storage.chunks(path))


@pytest.mark.parametrize("target", ["../../code/archive", "../../../secret", "weights", "/etc/passwd"])
def test_a_link_is_read_nowhere(storage: Storage, tmp_path: Path, target: str) -> None:
    own = tmp_path / "storage/checkpoints/mine"
    (own / "link").symlink_to(target)
    (own / "up").symlink_to("..")
    for path in ("checkpoints/mine/link", "checkpoints/mine/up/mine/weights"):
        with pytest.raises(GanglineError) as caught:
            read(storage, path)
        assert caught.value.code == "storage.elsewhere"
    assert storage.sizes("checkpoints/mine") == {"weights": 12}
    assert read(storage, "checkpoints/mine/weights") == b"of the trial"


def test_a_pipe_does_not_block_its_reader(storage: Storage, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "storage/checkpoints/mine/pipe")
    with pytest.raises(GanglineError, match="it is no regular file"):
        read(storage, "checkpoints/mine/pipe")
    assert storage.sizes("checkpoints/mine") == {"weights": 12}


@pytest.mark.parametrize("path", ["checkpoints/../code/archive", "../secret", "checkpoints//mine/weights", "./code"])
def test_a_path_leads_down_only(storage: Storage, path: str) -> None:
    with pytest.raises(GanglineError) as caught:
        read(storage, path)
    assert caught.value.code == "storage.elsewhere"
    with pytest.raises(GanglineError) as caught:
        storage.locate(f"{storage.url}/{path.replace('//', '/../')}")
    assert caught.value.code == "storage.elsewhere"


def test_a_file_that_is_gone_is_missing_and_not_elsewhere(storage: Storage) -> None:
    for path in ("checkpoints/mine/none", "checkpoints/none/weights"):
        with pytest.raises(FileNotFoundError):
            read(storage, path)


def test_a_url_by_another_path_to_the_same_storage_is_found(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(tmp_path / "storage")
    assert storage.locate(f"file://{tmp_path}/alias/checkpoints/mine") == "checkpoints/mine"
    (tmp_path / "storage/checkpoints/back").symlink_to(tmp_path / "storage")
    assert storage.locate(f"{storage.url}/checkpoints/back/code") == "checkpoints/back/code"


def test_a_folder_is_listed_and_removed_however_deep(storage: Storage, tmp_path: Path) -> None:
    place = os.open(tmp_path / "storage/checkpoints/mine", os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=place)
        below = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    assert storage.sizes("checkpoints/mine") == {"weights": 12}
    storage.remove_folder("checkpoints/mine", "checkpoints/gone")
    assert storage.names("checkpoints") == []


def test_a_folder_of_another_account_is_not_ours(storage: Storage, tmp_path: Path) -> None:
    assert storage.is_ours("checkpoints/mine")
    assert not storage.is_ours("checkpoints/none")
    if os.geteuid() == 0:
        os.chown(tmp_path / "storage/checkpoints/mine", 65534, 65534)
        assert not storage.is_ours("checkpoints/mine")


def test_a_walk_opens_each_folder_once(storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a deep folder of a trial would keep a thread of the gateway for as long as the trial wants."""
    names = [f"d{number}" for number in range(local_tree.MOST_LEVELS + 5)]
    own = tmp_path / "storage/checkpoints/mine"
    own.joinpath(*names).mkdir(parents=True)
    for level in range(len(names) + 1):
        own.joinpath(*names[:level], "file").write_text("x")
    opened: list[object] = []
    really_open = os.open

    def count(*words: Any, **named: Any) -> int:
        opened.append(words[0])
        return really_open(*words, **named)

    monkeypatch.setattr(os, "open", count)
    assert len(storage.sizes("checkpoints/mine")) == local_tree.MOST_LEVELS + 1
    assert len(opened) <= local_tree.MOST_LEVELS + 3


def test_a_folder_with_too_many_files_is_not_listed(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "MOST_ENTRIES", 1)
    assert storage.sizes("checkpoints/mine") == {"weights": 12}
    monkeypatch.setattr(storage_module, "MOST_ENTRIES", 0)
    with pytest.raises(GanglineError, match="more than 0 files") as caught:
        storage.sizes("checkpoints/mine")
    assert caught.value.code == "storage.too_many_files"
