"""The copying of an output folder into a storage: what is kept, what is left, and what stays behind."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from gangline.domain.storage.output import is_unfinished
from gangline.domain.storage.storage_fault import MARKER_FILE
from gangline.rank import keep_output
from gangline.rank.keep_output import OutputKeeper, OutputTarget, Report, open_target, run

# No multiple of the parts in which a file is copied.
NUM_BYTES = (2 << 20) + 5


class World:
    """An output folder, a storage and the lines for the runner."""

    def __init__(self, folder: Path, url: str = "") -> None:
        self.folder, self.stored = folder / "out", folder / "storage/outputs/7.1"
        self.folder.mkdir()
        self.url = url or f"file://{folder}/storage"
        self.stream = io.StringIO()

    def keep(self, target: OutputTarget | None = None, report: Report | None = None) -> None:
        target = target or open_target(self.url, "", "outputs/7.1", "7.1.1")
        OutputKeeper(self.folder, target, report or Report(self.stream, 60.0)).run()

    def lines(self, key: str) -> dict[str, Any]:
        """The lines of one kind, with their second value."""
        lines = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return {line.pop(key): next(iter(line.values()), None) for line in lines if key in line}

    def files(self, folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if not path.is_dir()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_files_are_copied_whole_and_removed_from_the_folder(world: World) -> None:
    (world.folder / "deep/er").mkdir(parents=True)
    content = {"a": b"1", "deep/er/b\nc": b"x" * (3 << 20), "deep/\u00e9 ": b""}
    for name, text in content.items():
        (world.folder / name).write_bytes(text)
    world.keep()
    assert world.files(world.stored) == content
    assert world.lines("kept") == {name: len(text) for name, text in content.items()}
    assert world.files(world.folder) == {}


def test_a_later_attempt_adds_and_replaces(world: World) -> None:
    for content in ({"a": b"1", "b": b"1"}, {"b": b"22", "c": b"2"}):
        for name, text in content.items():
            (world.folder / name).write_bytes(text)
        world.keep()
    assert world.files(world.stored) == {"a": b"1", "b": b"22", "c": b"2"}


def test_a_link_is_kept_as_the_file_in_the_folder_and_leads_nowhere_else(world: World, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "out-of-it").mkdir()
    (tmp_path / "out-of-it/x").write_text("secret")
    (world.folder / "sub").mkdir()
    (world.folder / "sub/best").write_text("best")
    for name, leads_to in {
        "latest": "sub/best", "z-chain": "latest", "up": "../secret", "absolute": str(tmp_path / "secret"),
        "beside": "../out-of-it/x", "folder": str(tmp_path / "out-of-it"), "inner": "sub", "nothing": "gone",
        "loop": "loop",
    }.items():  # fmt: skip
        (world.folder / name).symlink_to(leads_to)
    world.keep()
    assert world.files(world.stored) == {"latest": b"best", "z-chain": b"best", "sub/best": b"best"}
    out = "it is a link that leads out of the folder"
    left = world.lines("left")
    assert left.pop("loop")
    assert left == {
        "up": out, "absolute": out, "beside": out, "folder": out,
        "inner": "it is a link to a folder", "nothing": "it is a link to nothing",
    }  # fmt: skip
    assert (tmp_path / "secret").read_text() == "secret"


def test_what_is_no_file_is_left_and_named(world: World) -> None:
    os.mkfifo(world.folder / "pipe")
    (world.folder / os.fsdecode(b"\xff")).write_text("x")
    (world.folder / ".partial-x").write_text("x")
    (world.folder / ("n" * 201)).write_text("x")
    world.keep()
    left = world.lines("left")
    assert left.pop("n" * 201).startswith("its path is too long")
    assert left == {
        "pipe": "it is neither a file nor a link",
        "\udcff": "its name is not UTF-8",
        ".partial-x": "its name begins with .partial-, which marks unfinished copies",
    }
    assert not world.stored.exists()


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(world: World, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/b").write_text("secret")
    (world.folder / "sub").mkdir()
    for name in ("a", "sub/b"):
        (world.folder / name).write_text("mine")

    def swap() -> None:
        if (world.folder / "sub").is_symlink():
            return
        (world.folder / "sub").rename(world.folder / "other")
        (world.folder / "sub").symlink_to(tmp_path / "elsewhere")

    world.keep(report=_Hooked(world.stream, swap))
    assert world.files(world.stored) == {"a": b"mine"}
    assert "sub/b" in world.lines("left")
    assert (tmp_path / "elsewhere/b").exists()


def test_a_file_that_grows_or_vanishes_meanwhile(world: World) -> None:
    (world.folder / "a-grows").write_bytes(b"1" * NUM_BYTES)
    (world.folder / "b-vanishes").write_text("x")
    calls: list[int] = []

    def disturb() -> None:
        calls.append(1)
        # The first call comes before the first file is opened, the second while it is copied.
        if len(calls) == 2:
            with (world.folder / "a-grows").open("ab") as file:
                file.write(b"2")
            (world.folder / "b-vanishes").unlink()

    world.keep(report=_Hooked(world.stream, disturb))
    assert world.files(world.stored) == {"a-grows": b"1" * NUM_BYTES}
    assert world.lines("left") == {}
    # What was added is not in the storage, so the file stays.
    assert (world.folder / "a-grows").stat().st_size == NUM_BYTES + 1


def test_a_full_storage_leaves_the_files_and_no_part(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (world.folder / name).write_bytes(b"x" * 2000)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    world.keep()
    assert set(world.lines("left")) == {"a", "b"}
    assert "No space left on device" in world.lines("left")["a"]
    assert world.files(world.stored) == {}
    assert set(world.files(world.folder)) == {"a", "b"}


def test_the_limit_of_time_leaves_the_rest(world: World) -> None:
    for name in ("a", "b", "c"):
        (world.folder / name).write_bytes(b"x" * (2 << 20))
    times = iter(range(100))
    world.keep(report=Report(world.stream, 3.5, clock=lambda: float(next(times))))
    assert world.lines("kept").keys() | world.lines("left").keys() == {"a", "b", "c"}
    assert "the copying took more than 4 s" in world.lines("left").values()
    assert set(world.files(world.stored)) == world.lines("kept").keys()
    assert set(world.files(world.folder)) == world.lines("left").keys()


def test_limits_of_number_and_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep_output, "MOST_FILES", 3)
    for name in ("a", "b", "c", "d", "e"):
        (world.folder / name).write_text("xx")
    target = open_target(world.url, "", "outputs/7.1", "7.1.1")
    OutputKeeper(world.folder, target, Report(world.stream, 60.0), _left_bytes=5).run()
    assert set(world.lines("kept")) == {"a", "b"}
    assert set(world.lines("left")) == {"c"}
    assert set(world.lines("rest")) == {"at most 3 files are kept of one machine"}
    assert set(world.files(world.folder)) == {"c", "d", "e"}


def test_a_storage_that_is_away_is_not_made_anew(world: World, tmp_path: Path) -> None:
    (world.folder / "a").write_text("x")
    (tmp_path / "storage").mkdir()
    order = {
        "folder": str(world.folder), "storage_url": world.url, "marker": "m", "path": "outputs/7.1", "writer": "7.1.1",
        "limit_seconds": 60,
    }  # fmt: skip
    run(order, world.stream)
    assert "is away" in world.lines("left")["a"]
    assert list((tmp_path / "storage").iterdir()) == []
    (tmp_path / "storage" / MARKER_FILE).write_text("m\n")
    run(order, world.stream)
    assert world.files(world.stored) == {"a": b"x"}


@pytest.fixture
def bucket() -> Iterator[Any]:
    memory = fsspec.filesystem("memory")
    yield memory
    memory.rm("/bucket", recursive=True)


def test_an_object_store_gets_the_same(tmp_path: Path, bucket: Any) -> None:
    world = World(tmp_path, "memory://bucket")
    (world.folder / "deep").mkdir()
    (world.folder / "deep/a").write_bytes(b"12")
    (world.folder / "b").symlink_to("deep/a")
    world.keep()
    assert {path: bucket.cat_file(path) for path in bucket.find("/bucket")} == {
        "/bucket/outputs/7.1/b": b"12",
        "/bucket/outputs/7.1/deep/a": b"12",
    }
    assert world.files(world.folder) == {}


def test_unfinished_copies_are_known_by_their_name() -> None:
    assert is_unfinished("deep/.partial-7.1.1-0a")
    assert not is_unfinished(".partial-7/a")


class _Hooked(Report):
    """Calls the hook at each sign of progress."""

    def __init__(self, stream: io.StringIO, hook: Any) -> None:
        super().__init__(stream, 60.0)
        self.hook = hook

    def progress(self) -> None:
        self.hook()
