"""When a standby takes a leader's process for dead, by what dialling it brings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from unittest import mock

import pytest

from services.common import leader_probe
from services.common.leader_probe import leader_died


class _Network:
    """Answers dials in turn: None is a connection that is closed at once. Silent when it has no more."""

    def __init__(self, answers: Sequence[Exception | None]) -> None:
        self._answers = list(answers)
        self.is_used_up = asyncio.Event()

    async def dial(self, _host: str, _port: int) -> tuple[asyncio.StreamReader, mock.Mock]:
        if not self._answers:
            self.is_used_up.set()
            await asyncio.Event().wait()
        answer = self._answers.pop(0)
        if answer is not None:
            raise answer
        reader = asyncio.StreamReader()
        reader.feed_eof()
        return reader, mock.Mock()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_REDIAL_SECONDS", "_RESET_SECONDS"):
        monkeypatch.setattr(leader_probe, name, 0.0)


@pytest.mark.parametrize(
    "answers",
    [
        [None, ConnectionRefusedError()],
        [None, None, ConnectionRefusedError()],
        [None, ConnectionResetError(), ConnectionRefusedError()],
        [ConnectionRefusedError(), None, ConnectionAbortedError(), ConnectionRefusedError()],
    ],
    ids=["refused", "second connection closed", "dialled while it ended", "late"],
)
async def test_leader_that_was_there_and_refuses_has_died(
    answers: Sequence[Exception | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio, "open_connection", _Network(answers).dial)
    await asyncio.wait_for(leader_died("10.0.0.1:7000"), 5)


@pytest.mark.parametrize(
    "answers",
    [
        [ConnectionRefusedError(), ConnectionRefusedError()],
        [None, OSError("no route to host"), ConnectionRefusedError()],
        [None, TimeoutError(), ConnectionRefusedError()],
        [ConnectionResetError(), ConnectionRefusedError()],
    ],
    ids=["never there", "unreachable", "silent", "only resets"],
)
async def test_leader_may_live(answers: Sequence[Exception | None], monkeypatch: pytest.MonkeyPatch) -> None:
    network = _Network(answers)
    monkeypatch.setattr(asyncio, "open_connection", network.dial)
    watching = asyncio.ensure_future(leader_died("10.0.0.1:7000"))
    await asyncio.wait_for(network.is_used_up.wait(), 5)
    assert not watching.done()
    watching.cancel()
