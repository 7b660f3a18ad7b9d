"""The search path of ranks that run as another user."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.common.rank_rules import RankUser
from services.trial_runner.ranks import confinement
from services.trial_runner.ranks.confinement import Confinement

NOBODY = RankUser("nobody", 65534, 65534, (65534,), "/", "/bin/sh")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as another user")


@pytest.fixture
def top() -> Iterator[Path]:
    """A folder with some that another account may enter, and some that it may not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for each, mode in (("b", 0o755), ("closed", 0o700), ("closed/inner", 0o755), ("a", 0o711)):
            (folder / each).mkdir()
            (folder / each).chmod(mode)
        (folder / "file").touch(0o755)
        (folder / "link").symlink_to("closed")
        yield folder


async def test_a_path_keeps_the_folders_that_the_user_may_enter_in_their_order(top: Path) -> None:
    names = ("closed", "b", "closed/inner", "link", "file", "missing", "a")
    path = ":".join([*(f"{top}/{each}" for each in names), "tools", "", f"{top}/b"])
    assert await Confinement(user=NOBODY).keep_enterable(path) == f"{top}/b:{top}/a:tools::{top}/b"
    assert await Confinement().keep_enterable(path) == path


async def test_a_folder_that_does_not_answer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at it blocks as in the kernel, until the end of the test."""
    reader, writer = os.pipe()

    def look(user: RankUser | None, folder: str) -> bool:
        del user
        return folder != "/dead" or not os.read(reader, 1)

    monkeypatch.setattr(confinement, "is_folder_of", look)
    monkeypatch.setattr(confinement, "PATH_SECONDS", 0.2)
    began_at = time.monotonic()
    assert await Confinement(user=NOBODY).keep_enterable("/dead:/usr/bin:/dead:/bin") == "/usr/bin:/bin"
    assert time.monotonic() - began_at < 60
    os.close(writer)
