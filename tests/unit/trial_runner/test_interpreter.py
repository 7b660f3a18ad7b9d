"""A probe of the user's interpreter that the machine ends is no mistake of the user's."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from gangline.errors import ErrorKind, GanglineError
from services.trial_runner.ranks import interpreter
from services.trial_runner.ranks.interpreter import find_interpreter


def _program(folder: Path, script: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("script", "said"), [("kill -9 $$", "was killed (SIGKILL)"), ("exec sleep 60", "did not answer within 0.2 s")]
)
async def test_a_probe_that_is_ended_may_succeed_another_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, said: str
) -> None:
    monkeypatch.setattr(interpreter, "STEP_SECONDS", 0.2 if "sleep" in script else 30.0)
    with pytest.raises(GanglineError) as caught:
        await find_interpreter(_program(tmp_path, script), "a1", needs_library=True)
    assert (caught.value.code, caught.value.kind) == ("environment.no_answer", ErrorKind.UNAVAILABLE)
    assert said in caught.value.message


async def test_a_machine_without_room_for_a_process_is_the_cause(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    with pytest.raises(OSError, match="temporarily unavailable"):
        await find_interpreter(_program(tmp_path, "exit 0"), "a1", needs_library=True)


async def test_an_interpreter_that_fails_by_itself_is_named(tmp_path: Path) -> None:
    with pytest.raises(GanglineError) as caught:
        await find_interpreter(_program(tmp_path, "echo 'no module' >&2; exit 1"), "a1", needs_library=True)
    assert (caught.value.code, caught.value.kind) == ("environment.no_library", ErrorKind.INVALID)
