"""A thread that looks at files with the rights of another user, and its return to its own."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.common.access.user_rights import is_file_of, is_folder_of, resolve_as, rights_of
from services.common.rank_rules import RankUser

NOBODY = RankUser("nobody", 65534, 65534, (65534,), "/", "/bin/sh")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as another user")


@pytest.fixture
def secret() -> Iterator[Path]:
    """A folder for root alone in one that is open, and a link to it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "secret").mkdir(mode=0o700)
        (folder / "secret/file").write_text("of root")
        (folder / "link").symlink_to("secret/file")
        (folder / "open").write_text("of all")
        yield folder


def test_what_the_user_may_not_reach_is_not_there(secret: Path) -> None:
    assert [is_folder_of(user, secret / "secret") for user in (NOBODY, None)] == [False, True]
    for name in ("secret/file", "link"):
        assert [is_file_of(user, secret / name) for user in (NOBODY, None)] == [False, True]
        assert resolve_as(NOBODY, secret / name) is None
        assert resolve_as(None, secret / name) == (secret / "secret/file").resolve()
    assert is_file_of(NOBODY, secret / "open")
    assert resolve_as(NOBODY, Path("/proc/self/cwd")) == Path.cwd()


def test_the_rights_hold_for_this_thread_alone_and_end_with_the_block_and_with_an_error(secret: Path) -> None:
    groups, status = os.getgroups(), Path("/proc/thread-self/status").read_text().split("Cap", 1)[1].split("Seccomp")[0]
    begun, ended, seen = threading.Event(), threading.Event(), []

    def look() -> None:
        begun.wait(10)
        seen.append((secret / "secret/file").read_text())
        ended.set()

    thread = threading.Thread(target=look)
    thread.start()
    with rights_of(NOBODY):
        begun.set()
        assert ended.wait(10)
    thread.join()
    with pytest.raises(PermissionError), rights_of(NOBODY):
        (secret / "secret/file").read_text()
    assert seen == ["of root"]
    assert (secret / "secret/file").read_text() == "of root"
    assert os.getgroups() == groups
    assert Path("/proc/thread-self/status").read_text().split("Cap", 1)[1].split("Seccomp")[0] == status


def test_a_user_gets_no_group_of_root(secret: Path) -> None:
    (secret / "of group").write_text("x")
    (secret / "of group").chmod(0o040)
    before = os.getgroups()
    os.setgroups([0, 4242])
    try:
        os.chown(secret / "of group", 0, 4242)
        with rights_of(NOBODY), pytest.raises(PermissionError):
            (secret / "of group").read_text()
    finally:
        os.setgroups(before)
