"""Where a fork server's socket lies: short enough for the kernel, private, and the same after a restart."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from gangline.errors import GanglineError
from services.agent.warm import LONGEST_SOCKET_PATH, Template


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_socket_lies_in_the_state_directory() -> None:
    assert (
        Template("rank-template", [], Path("/var/lib/gangline")).socket_path == "/var/lib/gangline/rank-template.sock"
    )


def test_deep_state_directory_gets_a_short_socket(temporary: Path) -> None:
    deep = Path("/" + "deep/" * 40)
    first, second = (Template("rank-template", [], deep).socket_path for _ in range(2))
    assert first == second
    assert Path(first).parent.parent == temporary
    assert Path(first).parent.stat().st_mode & 0o077 == 0
    assert len(Path(first).name) < LONGEST_SOCKET_PATH
    assert Template("rank-template", [], deep / "other").socket_path != first


def test_folder_that_others_can_enter_is_not_used(temporary: Path) -> None:
    deep = Path("/" + "deep/" * 40)
    Path(Template("rank-template", [], deep).socket_path).parent.chmod(0o777)
    with pytest.raises(GanglineError, match="choose a --state-dir with a shorter path"):
        Template("rank-template", [], deep)
