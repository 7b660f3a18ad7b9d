"""A reader that the machine ends, or is too slow for, says nothing about the archive."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gangline.errors import ErrorKind, GanglineError
from services.common import archive_judge
from services.common.archive import BadArchive


def _ended_by(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, -number, b"", b"")

    monkeypatch.setattr(subprocess, "run", run)


async def test_a_reader_that_was_killed_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    _ended_by(monkeypatch, signal.SIGKILL)
    with pytest.raises(GanglineError) as caught:
        await archive_judge.judge_archive(Path("code.tar.gz"))
    assert (caught.value.code, caught.value.kind) == ("code.not_judged", ErrorKind.UNAVAILABLE)


async def test_a_reader_that_computes_too_long_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    _ended_by(monkeypatch, signal.SIGXCPU)
    with pytest.raises(BadArchive, match="15 s of computing"):
        await archive_judge.judge_archive(Path("code.tar.gz"))


async def test_a_busy_machine_is_no_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(archive_judge, "_WALL_SECONDS", 0.001)
    with pytest.raises(GanglineError) as caught:
        await archive_judge.judge_archive(tmp_path / "code.tar.gz")
    assert (caught.value.code, caught.value.kind) == ("code.not_judged", ErrorKind.UNAVAILABLE)
