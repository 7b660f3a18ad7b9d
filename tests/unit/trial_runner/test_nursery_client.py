"""A temporary failure of the machine is no fault of the experiment's, so another attempt may succeed."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.errors import ErrorKind, GanglineError
from services.trial_runner.ranks.nursery_client import NurseryClient, NurseryProcess, start_nursery


async def test_a_nursery_that_cannot_be_started_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(GanglineError) as caught:
        await start_nursery("", tmp_path)
    assert (caught.value.code, caught.value.kind) == ("runner.no_nursery", ErrorKind.UNAVAILABLE)


async def test_a_nursery_that_dies_before_it_hosts_the_store_is_tried_again() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(GanglineError) as caught:
        await NurseryClient(NurseryProcess(os.getpid(), ours)).wait_store()
    assert (caught.value.code, caught.value.kind) == ("runner.no_store", ErrorKind.UNAVAILABLE)
    assert caught.value.message == "cannot host the ranks' store: the nursery died"
    ours.close()


def _start(nursery: NurseryClient, _reader: int) -> None:
    nursery.start(0, {}, directory="/", num_threads=1, fds=[])


def _hold_lease(nursery: NurseryClient, reader: int) -> None:
    nursery.hold_lease(reader, lambda: None)


@pytest.mark.parametrize("ask", [_start, _hold_lease])
async def test_a_nursery_that_takes_no_request_has_started_nothing(ask: Callable[[NurseryClient, int], None]) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    nursery = NurseryClient(NurseryProcess(os.getpid(), ours))
    with pytest.raises(GanglineError) as caught:
        ask(nursery, ours.fileno())
    assert (caught.value.code, caught.value.kind) == ("runner.no_nursery", ErrorKind.UNAVAILABLE)
    assert caught.value.message == (
        f"the process that forks the ranks (pid {os.getpid()}) takes no requests any more: Broken pipe"
    )
    assert await nursery.events.get() is None, "it counts as gone"
    ours.close()
