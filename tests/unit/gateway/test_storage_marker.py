"""A gateway knows its storage's folder by a marker file, and touches no folder that has lost it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.domain.storage.storage_fault import MARKER_FILE
from gangline.errors import ErrorKind, GanglineError
from services.gateway.storage.storage import Storage


def open_storage(folder: Path, *, is_used: bool, known: str = "") -> Storage:
    storage = Storage(f"file://{folder}")
    storage.settle_marker(is_used, known)
    return storage


def test_a_new_storage_gets_one_marker_however_many_gateways_open_it(tmp_path: Path) -> None:
    first = open_storage(tmp_path / "s", is_used=False)
    assert first.marker
    assert open_storage(tmp_path / "s", is_used=True).marker == first.marker
    assert [path.name for path in (tmp_path / "s").iterdir()] == [MARKER_FILE]
    # Ranks of all users read it.
    assert (tmp_path / "s" / MARKER_FILE).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("name", ["code", "checkpoints"])
def test_the_storage_of_an_earlier_version_gets_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name / "c1").mkdir(parents=True)
    (tmp_path / name / "c1" / "file").touch()
    assert open_storage(tmp_path, is_used=True).marker


@pytest.mark.parametrize("remains", ["", ".", "checkpoints", "checkpoints/c1", "code"])
def test_a_cluster_with_experiments_does_not_begin_a_storage_anew(tmp_path: Path, remains: str) -> None:
    """Empty folders count for nothing: an agent may have made them in the mount point."""
    folder = tmp_path / "s"
    if remains:
        (folder / remains).mkdir(parents=True)
    found = sorted(folder.rglob("*")) if remains else []
    with pytest.raises(GanglineError, match=f"{MARKER_FILE} is not in it, so it is not mounted") as caught:
        open_storage(folder, is_used=True)
    assert (caught.value.code, caught.value.kind) == ("storage.away", ErrorKind.UNAVAILABLE)
    assert (sorted(folder.rglob("*")) if folder.exists() else []) == found


def test_a_folder_that_the_unit_protects_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, text: str) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(GanglineError, match=r"Read-only file system; mount it writable, or, .* ReadWritePaths="):
        open_storage(tmp_path / "s", is_used=False)


def test_a_marker_that_a_full_disk_refuses_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Path.write_text

    def fill(path: Path, text: str) -> int:
        original(path, text[:4])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fill)
    for _ in range(2):
        with pytest.raises(GanglineError, match="No space left on device"):
            open_storage(tmp_path / "s", is_used=False)
    assert list((tmp_path / "s").iterdir()) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda storage: storage.mark("checkpoints/x"),
        lambda storage: storage.remove_folder("checkpoints/x", "checkpoints/gone"),
        lambda storage: storage.remove_file("checkpoints/x"),
        lambda storage: storage.put(Path(__file__), "code/x"),
        lambda storage: storage.writing("code/x").__enter__(),
        lambda storage: storage.has("code/x"),
        lambda storage: storage.names("checkpoints"),
        lambda storage: storage.sizes("checkpoints/x"),
        lambda storage: next(storage.chunks("code/x")),
    ],
)
def test_nothing_is_read_written_or_counted_as_deleted_where_the_mount_is_lost(
    tmp_path: Path, call: Callable[[Storage], object]
) -> None:
    """A deletion that finds nothing would let the record go, and the files stay for ever. Code that is only away is not
    missing."""
    storage = open_storage(tmp_path / "s", is_used=False)
    (tmp_path / "s").rename(tmp_path / "aside")
    other = open_storage(tmp_path / "other", is_used=False)
    (tmp_path / "s").mkdir()
    with pytest.raises(GanglineError, match="is not in it") as caught:
        call(storage)
    assert caught.value.code == "storage.away"
    assert not list((tmp_path / "s").iterdir())
    (tmp_path / "s").rmdir()
    (tmp_path / "other").rename(tmp_path / "s")
    with pytest.raises(GanglineError) as caught:
        call(storage)
    assert caught.value.code == "storage.away"
    said = f"has the id {other.marker}, and the cluster's storage has the id {storage.marker}; mount the right one"
    assert said in caught.value.message
    assert [path.name for path in (tmp_path / "s").iterdir()] == [MARKER_FILE]


def test_the_marker_that_the_cluster_knows_decides(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    (folder / "code").mkdir(parents=True)
    (folder / "code/file").touch()
    known = "0d9b"
    for text in (None, "7e1a"):
        if text is not None:
            (folder / MARKER_FILE).write_text(text)
        storage = Storage(f"file://{folder}")
        with pytest.raises(GanglineError) as caught:
            storage.settle_marker(is_used=True, known=known)
        assert (caught.value.code, storage.marker) == ("storage.away", known)
    # An operator takes the folder as it is.
    for text in (known, ""):
        (folder / MARKER_FILE).write_text(text)
        storage.check_present()
        assert open_storage(folder, is_used=True, known=known).marker == known
    assert open_storage(tmp_path / "new", is_used=False, known=known).marker == known
    assert (tmp_path / "new" / MARKER_FILE).read_text().strip() == known


def test_an_object_store_needs_no_marker() -> None:
    storage = Storage("memory://marker-test")
    storage.settle_marker(is_used=True)
    assert not storage.marker
    storage.check_present()
