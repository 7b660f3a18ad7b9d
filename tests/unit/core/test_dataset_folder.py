"""Downloads by several processes: one at a time, once, and whole or not at all."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from gangline.core.dataset_folder import ROOT_KEY, download_once
from gangline.errors import GanglineError
from tests.support.wait import until

CONTEXT = multiprocessing.get_context("fork")


def take(root: Path, journal: Path, rank: int, per_rank: bool = False) -> None:
    os.environ["RANK"] = str(rank)

    def download(folder: Path) -> None:
        with journal.open("a") as file:
            file.write(f"{rank}\n")
        for part in range(50):
            (folder / f"{part}.bin").write_bytes(b"x" * 1000)

    folder = download_once("digits/v1", download, root=root, per_rank=per_rank)
    assert len(list(folder.glob("*.bin"))) == 50
    assert (folder.name == f"v1.rank{rank}") is per_rank


@pytest.mark.parametrize("per_rank", [False, True])
def test_processes_that_begin_together_download_once(tmp_path: Path, per_rank: bool) -> None:
    journal = tmp_path / "journal"
    processes = [CONTEXT.Process(target=take, args=(tmp_path, journal, rank, per_rank)) for rank in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 6
    ranks = journal.read_text().split()
    assert sorted(ranks) == ["0", "1", "2", "3", "4", "5"] if per_rank else len(ranks) == 1


def stand(root: Path) -> None:
    def download(folder: Path) -> None:
        (folder / "part").write_text("half")
        signal.pause()

    download_once("digits", download, root=root)


async def test_a_download_whose_process_dies_is_begun_anew(tmp_path: Path) -> None:
    process = CONTEXT.Process(target=stand, args=(tmp_path,))
    process.start()
    await until((tmp_path / ".digits.draft/part").exists, "half of a download")
    assert not (tmp_path / "digits").exists()
    process.kill()
    process.join(10)
    folder = download_once("digits", lambda folder: (folder / "whole").write_text("all"), root=tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == [".complete", "whole"]
    assert download_once("digits", lambda _: pytest.fail("downloaded twice"), root=tmp_path) == folder


def test_a_download_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOT_KEY, str(tmp_path))

    def fail(folder: Path) -> None:
        (folder / "part").write_text("half")
        raise ConnectionError("the server is away")

    with pytest.raises(ConnectionError):
        download_once("digits", fail)
    assert [path.name for path in tmp_path.iterdir()] == [".digits.lock"]


@pytest.mark.parametrize("name", ["", "../up", "a//b", "/etc", ".hidden", "a/"])
def test_a_name_stays_below_the_root(tmp_path: Path, name: str) -> None:
    with pytest.raises(GanglineError, match="is no name of a folder"):
        download_once(name, lambda _: None, root=tmp_path)
