"""The files of an import: whole and in place, or none of them, on storages that rename and on others."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from gangline.domain.storage.checkpoint_import import ImportedFile
from gangline.errors import Effect, GanglineError
from services.gateway.storage.import_folder import PREFIX, STALE_SECONDS, ImportFolder, clear_stale_imports
from services.gateway.storage.storage import Storage

_CONTENT = {"a": b"first", "empty": b"", "sub/b": b"second file"}


def _files(content: dict[str, bytes] = _CONTENT) -> list[ImportedFile]:
    return [ImportedFile(path, len(text), hashlib.sha256(text).hexdigest()) for path, text in content.items()]


@pytest.fixture(params=["file", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    yield Storage(f"file://{tmp_path}/s" if request.param == "file" else "memory://s")
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def _read(storage: Storage, path: str) -> bytes:
    return b"".join(storage.chunks(path))


def test_files_arrive_in_any_cut(storage: Storage) -> None:
    whole = b"".join(_CONTENT.values())
    for size in (1, 7, len(whole)):
        folder = ImportFolder(storage, f"c{size}", _files())
        folder.open()
        for start in range(0, len(whole), size):
            folder.write(whole[start : start + size])
        folder.seal(b"{}")
        folder.close()
        assert {path: _read(storage, f"checkpoints/c{size}/{path}") for path in _CONTENT} == _CONTENT
        assert _read(storage, f"checkpoints/c{size}/metadata.json") == b"{}"
    assert sorted(storage.names("checkpoints")) == ["c1", f"c{len(whole)}", "c7"]


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([b"first", b"second"], "did not arrive whole"),
        ([], "did not arrive whole"),
        ([b"first", b"second file", b"!"], "more bytes"),
        ([b"fIrst"], "another content"),
    ],
)
def test_upload_that_is_not_as_announced_leaves_nothing(storage: Storage, chunks: list[bytes], words: str) -> None:
    folder = ImportFolder(storage, "c", _files())
    with pytest.raises(GanglineError, match=words) as caught:
        _run(folder, chunks)
    assert caught.value.code == "checkpoint.upload"
    assert storage.names("checkpoints") == []


def _run(folder: ImportFolder, chunks: list[bytes]) -> None:
    folder.open()
    try:
        for chunk in chunks:
            folder.write(chunk)
        folder.seal(b"{}")
    finally:
        folder.close()


def test_late_write_of_a_cancelled_import_writes_nothing(storage: Storage) -> None:
    folder = ImportFolder(storage, "c", _files())
    folder.open()
    folder.close()
    folder.write(b"first")
    folder.seal(b"{}")
    folder.close()
    assert storage.names("checkpoints") == []


@pytest.mark.parametrize("when", ["in a file", "at the manifest"])
def test_full_storage_leaves_nothing(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(f"file://{tmp_path}/s")
    opened, real = [], LocalFileSystem.open

    class _Full:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def write(self, _: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill(self: LocalFileSystem, path: str, mode: str = "rb", **options: Any) -> Any:
        opened.append(path)
        file = real(self, path, mode, **options)
        is_meant = path.endswith("sub/b" if when == "in a file" else "metadata.json")
        return _Full(file) if is_meant else file

    monkeypatch.setattr(LocalFileSystem, "open", fill)
    with pytest.raises(GanglineError, match="is full, so nothing was imported") as caught:
        _run(ImportFolder(storage, "c", _files()), [b"".join(_CONTENT.values())])
    assert (caught.value.code, caught.value.effect) == ("storage.full", Effect.NONE)
    assert storage.names("checkpoints") == []


def test_equal_checkpoint_that_is_there_stays(storage: Storage) -> None:
    """The earlier import lost its answer; its folder has the same id, so the same content."""
    _run(ImportFolder(storage, "c", _files()), [b"".join(_CONTENT.values())])
    _run(ImportFolder(storage, "c", _files()), [b"".join(_CONTENT.values())])
    assert storage.names("checkpoints") == ["c"]
    assert _read(storage, "checkpoints/c/sub/b") == b"second file"


def test_withdrawn_import_leaves_nothing(storage: Storage) -> None:
    folder = ImportFolder(storage, "c", _files())
    _run(folder, [b"".join(_CONTENT.values())])
    folder.withdraw()
    assert storage.names("checkpoints") == []


def test_withdrawal_leaves_what_another_import_has_made(storage: Storage) -> None:
    earlier, later = (ImportFolder(storage, "c", _files()) for _ in range(2))
    for folder in (earlier, later):
        _run(folder, [b"".join(_CONTENT.values())])
    later.withdraw()
    assert _read(storage, "checkpoints/c/sub/b") == b"second file"


def test_an_equal_import_that_breaks_off_late_makes_no_checkpoint_without_files(storage: Storage) -> None:
    content = b"".join(_CONTENT.values())
    broken, whole = (ImportFolder(storage, "c", _files()) for _ in range(2))
    broken.open()
    whole.open()
    whole.write(content[:10])
    broken.close()
    whole.write(content[10:])
    if storage.renames:
        whole.seal(b"{}")
        assert {path: _read(storage, f"checkpoints/c/{path}") for path in _CONTENT} == _CONTENT
        return
    with pytest.raises(GanglineError, match="was removed by another import") as caught:
        whole.seal(b"{}")
    assert caught.value.code == "checkpoint.upload"
    assert not storage.has("checkpoints/c/metadata.json")


def test_remains_of_a_dead_gateway_are_removed_after_an_hour(tmp_path: Path) -> None:
    storage = Storage(f"file://{tmp_path}")
    ImportFolder(storage, "c", _files()).open()
    names = storage.names("checkpoints")
    assert [name.startswith(PREFIX) for name in names] == [True]
    clear_stale_imports(storage, time.time() + STALE_SECONDS / 2)
    assert storage.names("checkpoints") == names
    clear_stale_imports(storage, time.time() + STALE_SECONDS + 60)
    assert storage.names("checkpoints") == []
