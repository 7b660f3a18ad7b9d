"""Files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.common.disk import move_aside, write_atomic


def test_a_failed_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    write_atomic(path, "old")

    def fail(_descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("services.common.disk.os.fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_atomic(path, "new")
    assert path.read_text() == "old"


def test_mode_and_content(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    for is_durable in (True, False):
        write_atomic(path, "new", mode=0o600, is_durable=is_durable)
        assert path.read_text() == "new"
        assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path], "no draft is left"


def test_move_aside_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "epoch"
    for number in (1, 2):
        path.write_text(str(number))
        assert move_aside(path, "corrupt") == tmp_path / f"epoch.corrupt-{number}"
    assert (tmp_path / "epoch.corrupt-1").read_text() == "1"
