"""A probe of the user's interpreter that the machine ends is no mistake of the user's."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gangline.errors import ErrorKind, GanglineError
from services.trial_runner.ranks.interpreter import find_interpreter
from services.trial_runner.ranks.step import run_step


class _Nursery:
    """Tells of a process what the test wants, and prints a line into its stderr."""

    def __init__(self, *events: dict[str, Any] | None, said: str = "") -> None:
        self.events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._events = events
        self._said = said

    def start(self, _rank: int, _environment: object, *, fds: Sequence[int], **_: object) -> None:
        os.write(fds[1], self._said.encode())
        for event in self._events:
            self.events.put_nowait(event)

    def signal(self, _ranks: Sequence[int], number: int) -> None:
        self.events.put_nowait({"event": "exited", "exit_code": None, "signal": number})


STARTED = {"event": "started", "pid": 7}


def _exited(exit_code: int | None, signal: int | None = None) -> dict[str, Any]:
    return {"event": "exited", "exit_code": exit_code, "signal": signal}


async def _probe(nursery: _Nursery, folder: Path) -> None:
    python = folder / "python"
    python.touch()

    async def run(command: Sequence[str]) -> tuple[str, str]:
        return await run_step(nursery, command, {}, str(folder), 0.2)  # type: ignore[arg-type]

    await find_interpreter(str(python), "a1", None, run, needs_library=True)


@pytest.mark.parametrize(
    ("events", "code", "said"),
    [
        ((STARTED, _exited(None, 9)), "environment.no_answer", "killed (SIGKILL) before it had answered"),
        ((STARTED,), "environment.no_answer", "no answer within 0.2 s"),
        ((STARTED, None), "runner.no_nursery", "the process that started it died"),
    ],
    ids=["killed", "slow", "nursery"],
)
async def test_a_probe_that_is_ended_may_succeed_another_time(
    tmp_path: Path, events: tuple[dict[str, Any] | None, ...], code: str, said: str
) -> None:
    with pytest.raises(GanglineError) as caught:
        await _probe(_Nursery(*events), tmp_path)
    assert (caught.value.code, caught.value.kind) == (code, ErrorKind.UNAVAILABLE)
    assert said in caught.value.message


async def test_an_interpreter_that_fails_by_itself_is_named(tmp_path: Path) -> None:
    with pytest.raises(GanglineError, match="no module") as caught:
        await _probe(_Nursery(STARTED, _exited(1), said="no module\n"), tmp_path)
    assert (caught.value.code, caught.value.kind) == ("environment.no_library", ErrorKind.INVALID)
