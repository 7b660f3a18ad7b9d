"""Which errors tell of a fault of the disk, whose disk it is, and where a file goes that the disk refuses."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from services.common import disk_fault


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT])
def test_a_disk_fault_is_found_behind_the_error_that_was_raised_from_it(number: int) -> None:
    error = ValueError("cannot unpack")
    error.__cause__ = OSError(number, os.strerror(number))
    assert disk_fault.is_disk_fault(error)


def test_other_errors_are_no_disk_faults() -> None:
    assert not disk_fault.is_disk_fault(PermissionError(errno.EACCES, "no"))
    assert not disk_fault.is_disk_fault(ValueError("full"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT])
def test_a_path_in_the_folder_tells_whose_disk_it_is(tmp_path: Path, number: int) -> None:
    state, other = tmp_path / "state", tmp_path / "other"
    state.mkdir()
    text = os.strerror(number)
    assert disk_fault.find_disk_fault(f"OSError: [Errno {number}] {text}: '{state}/a/b'", state)
    assert not disk_fault.find_disk_fault(f"OSError: [Errno {number}] {text}: '{other}/b'", state)
    assert not disk_fault.find_disk_fault(f"OSError: [Errno {number}] {text}: '{state}/../other/b'", state)


@pytest.mark.parametrize(
    "message", ["[Errno 28] No space left on device", "No space left on device", "[Errno 28] x: 'y'"]
)
def test_without_a_path_the_folder_itself_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    assert not disk_fault.find_disk_fault(message, tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("services.common.disk_fault.os.fsync", refuse)
    assert disk_fault.find_disk_fault(message, tmp_path)
    assert disk_fault.check_folder(tmp_path) == (
        f"its state directory {tmp_path} takes no writes (No space left on device); free space there"
    )
    assert not list(tmp_path.iterdir())
    assert not disk_fault.find_disk_fault("ValueError: boom", tmp_path)


def test_a_spare_file_belongs_to_its_own_path_and_replaces_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "exit.json"
    assert disk_fault.read_spare(path) is None
    for text in ("old", "new"):
        disk_fault.write_spare(path, text)
    assert disk_fault.read_spare(path) == "new"
    assert disk_fault.read_spare(tmp_path / "other" / "exit.json") is None
    assert disk_fault.spare_path(path).stat().st_mode & 0o077 == 0
    disk_fault.remove_spare(path)
    assert disk_fault.read_spare(path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_what_another_user_puts_in_the_place_of_an_exit_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "exit.json"
    spare = disk_fault.spare_path(path)
    try:
        spare.write_text("{}")
        assert disk_fault.has_spare(path)
        os.chown(spare, 65534, 65534)
        assert not disk_fault.has_spare(path)
        assert disk_fault.read_spare(path) is None
        spare.unlink()
        # Reading a pipe would wait for a writer.
        os.mkfifo(spare)
        assert not disk_fault.has_spare(path)
        assert disk_fault.read_spare(path) is None
    finally:
        spare.unlink(missing_ok=True)
