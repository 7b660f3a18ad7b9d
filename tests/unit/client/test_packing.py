"""Code archives: the same bytes for the same files, what is left out, and what is refused with which words."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.client.transfer import packing
from gangline.client.transfer.packing import pack_code
from gangline.errors import GanglineError
from services.common.archive import judge
from tests.support.examples import examples
from tests.support.source import ROOT


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def names_of(folder: Path) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(pack_code(folder).payload))) as tar:
        return tar.getnames()


@pytest.mark.parametrize("name", ["core_loop", "digits", "text"])
def test_what_an_example_writes_beside_its_code_is_not_uploaded(tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(ROOT / "examples" / name, tmp_path / name)
    before = names_of(folder)
    write(folder, {"checkpoints/id/model": b"1", "tensorboard/events": b"1"})
    assert names_of(folder) == before


@settings(max_examples=examples(25))
@given(st.dictionaries(st.text("abcxyz", min_size=1, max_size=6), st.binary(max_size=40), max_size=6), st.randoms())
def test_same_files_give_the_same_archive(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], rng: object
) -> None:
    shuffled = dict(sorted(files.items(), key=lambda _: rng.random()))  # type: ignore[attr-defined]  # random.Random
    folder, shuffled_folder = (write(tmp_path_factory.mktemp("code"), each) for each in (files, shuffled))
    for number, path in enumerate(shuffled_folder.rglob("*")):
        os.utime(path, (number, number))
    assert pack_code(folder) == pack_code(shuffled_folder)


def test_content_name_and_mode_matter(tmp_path: Path) -> None:
    seen = set()
    for number, (name, content) in enumerate([("a", b"1"), ("a", b"2"), ("b", b"1")]):
        seen.add(pack_code(write(tmp_path / str(number), {name: content})).sha256)
    (tmp_path / "0" / "a").chmod(0o755)
    assert len(seen | {pack_code(tmp_path / "0").sha256}) == 4


def test_entries_carry_no_time_and_no_owner(tmp_path: Path) -> None:
    payload = pack_code(write(tmp_path, {"b.py": b"x", "a/c.py": b"y"})).payload
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(payload))) as tar:
        entries = tar.getmembers()
    assert [entry.name for entry in entries] == ["a/c.py", "b.py"]
    assert {(entry.mtime, entry.uid, entry.gid, entry.uname, entry.mode) for entry in entries} == {(0, 0, 0, "", 0o644)}


def test_ignore_files_and_what_no_trial_needs(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "model_def.py": b"",
            "notes.txt": b"",
            "keep.txt": b"",
            "data/big.bin": b"",
            "sub/data/big.bin": b"",
            "sub/out.log": b"",
            ".git/HEAD": b"",
            "__pycache__/model_def.pyc": b"",
            ".venv/bin/python": b"",
            ".detignore": b"*.txt\n!keep.txt\n",
            ".ganglineignore": b"# comment\n/data/\n*.log\n",
        },
    )
    assert names_of(tmp_path) == [".detignore", ".ganglineignore", "keep.txt", "model_def.py", "sub/data/big.bin"]


def test_links_are_followed(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"shared.py": b"s"})
    folder = write(tmp_path / "code", {"a.py": b""})
    (folder / "lib").symlink_to(outside)
    (folder / "b.py").symlink_to("a.py")
    assert names_of(folder) == ["a.py", "b.py", "lib/shared.py"]


def test_empty_folder_is_packed(tmp_path: Path) -> None:
    archive = pack_code(tmp_path)
    assert (archive.num_files, archive.num_bytes, names_of(tmp_path)) == (0, 0, [])


def test_too_much_names_size_limit_and_the_largest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MB", 1000)
    write(tmp_path, {"a.bin": b"x" * 60_000, "b/c.bin": b"x" * 40_000, "d.py": b"x" * 100, "e.py": b"x"})
    with pytest.raises(GanglineError) as caught:
        pack_code(tmp_path)
    assert caught.value.code == "code.too_big"
    assert caught.value.message == (
        f"the code folder {tmp_path} holds 100.1 MB, above the limit of 95 MB; the largest are a.bin 60.0 MB, "
        f"b/c.bin 40.0 MB, d.py 0.1 MB; list what the trial does not need in {tmp_path}/.ganglineignore"
    )


def test_too_many_files_are_counted_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_FILES", 2)
    write(tmp_path, {"a.py": b"", "b.py": b"", "c.py": b""})
    with pytest.raises(GanglineError) as caught:
        pack_code(tmp_path)
    assert (caught.value.code, caught.value.message) == (
        "code.too_many",
        f"the code folder {tmp_path} holds more than 2 files, also through links; list what the trial does not need in "
        f"{tmp_path}/.ganglineignore",
    )


def test_links_that_multiply_folders_end_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level holds nine links to the next one: written out, 9^12 folders."""
    monkeypatch.setattr(packing, "MAX_FOLDERS", 500)
    for level in range(12):
        (tmp_path / f"level{level}").mkdir()
        for number in range(9):
            (tmp_path / f"level{level}" / str(number)).symlink_to(tmp_path / f"level{level + 1}")
    (tmp_path / "level12").mkdir()
    with pytest.raises(GanglineError, match="more than 500 folders, also through links"):
        pack_code(tmp_path / "level0")


def test_name_that_no_archive_may_hold_is_named(tmp_path: Path) -> None:
    folder = tmp_path
    for _ in range(6):
        folder /= "d" * 200
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("")
    with pytest.raises(GanglineError, match="has a path of more than 1024 bytes") as caught:
        pack_code(tmp_path)
    assert caught.value.code == "code.long_path"


def test_packed_links_pass_the_judge(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"shared.py": b"s"})
    folder = write(tmp_path / "code", {"a.py": b"", "h.py": b"h"})
    (folder / "lib").symlink_to(outside)
    (folder / "b.py").symlink_to("a.py")
    (folder / "c.py").hardlink_to(folder / "h.py")
    packed = tmp_path / "code.tar.gz"
    packed.write_bytes(pack_code(folder).payload)
    judge(packed)


def test_real_limit_is_measured_before_anything_is_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse.bin").open("wb") as file:
        file.truncate(96 << 20)
    with pytest.raises(GanglineError, match=r"holds 96\.0 MB, above the limit of 95 MB"):
        pack_code(tmp_path)


@pytest.mark.parametrize(
    ("prepare", "code", "message"),
    [
        (
            lambda folder: folder.joinpath("gone").symlink_to("nowhere"),
            "code.unreadable",
            "cannot read {folder}/gone: No such file or directory; repair it or list it in an ignore file",
        ),
        (
            lambda folder: folder.joinpath("loop").symlink_to(folder),
            "code.link_loop",
            "{folder}/loop is a link to a folder around it; remove it or list it in an ignore file",
        ),
    ],
)
def test_what_cannot_be_packed_is_named(tmp_path: Path, prepare: object, code: str, message: str) -> None:
    prepare(tmp_path)  # type: ignore[operator]  # one of the functions above
    with pytest.raises(GanglineError) as caught:
        pack_code(tmp_path)
    assert (caught.value.code, caught.value.message) == (code, message.format(folder=tmp_path))


def test_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, what in (("gone", "does not exist"), ("file", "is a file")):
        with pytest.raises(GanglineError) as caught:
            pack_code(tmp_path / name)
        assert caught.value.message == (
            f"the code folder {tmp_path / name} {what}; give the folder that holds the trial"
        )
