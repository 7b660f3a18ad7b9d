"""Owns the health of the state directory: writes into it regularly, and reports when it accepts no writes.

One bad check takes the agent out of use for new work; several good checks in a row bring it back. Running work
continues. A disk that hangs costs one thread and never blocks the agent. Prometheus gets the size of the directory.
Runs as one long-lived task.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from services.agent.machine import metrics
from services.agent.machine.daemon_call import start_call
from services.common.disk_fault import check_folder

# Limit for a check. A busy disk needs less time for a small file.
CHECK_SECONDS = 20.0

log = structlog.get_logger(__name__)


class DiskMonitor:
    """Checks one state directory.

    make_room: called when a check fails, before the second try.
    on_change: called on the event loop with the problem; empty when it is over.
    upkeep: called with each check, in its thread; its OSErrors are ignored.
    """

    def __init__(
        self,
        state: Path,
        period_seconds: float,
        num_good_checks: int,
        make_room: Callable[[], None],
        on_change: Callable[[str], None],
        *,
        upkeep: Callable[[], None] = lambda: None,
    ) -> None:
        self._state = state
        self._period_seconds = period_seconds
        self._num_good_checks = num_good_checks
        self._make_room = make_room
        self._on_change = on_change
        self._upkeep = upkeep
        self._problem = ""
        self._good_checks = 0
        self._hurry = asyncio.Event()
        self._call: asyncio.Future[str] | None = None

    def hurry(self) -> None:
        """Makes the next check due now, because a file could not be written."""
        self._hurry.set()

    async def run(self) -> None:
        """Checks until it is cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._period_seconds):
                    await self._hurry.wait()
            self._hurry.clear()
            await self.check_once()

    async def check_once(self) -> None:
        """Makes one check. A check that still hangs from the last time is awaited again, and not repeated."""
        if self._call is None:
            self._call = start_call(partial(_check, self._state, self._make_room, self._upkeep))
        await asyncio.wait([self._call], timeout=CHECK_SECONDS)
        if self._call.done():
            problem, self._call = self._call.result(), None
        else:
            problem = f"its state directory {self._state} does not answer within {CHECK_SECONDS:g} s; look at the disk"
        self._take_in(problem)

    def _take_in(self, problem: str) -> None:
        self._good_checks = 0 if problem else self._good_checks + 1
        if not problem and self._problem and self._good_checks < self._num_good_checks:
            return
        if problem == self._problem:
            return
        if problem:
            log.error("nothing can start here", problem=problem)
        else:
            log.info("the state directory takes writes again", state=str(self._state))
        self._problem = problem
        self._on_change(problem)


def _check(state: Path, make_room: Callable[[], None], upkeep: Callable[[], None]) -> str:
    problem = _find_problem(state, make_room)
    with suppress(OSError):
        upkeep()
    with suppress(OSError):
        _measure(state)
    return problem


def _measure(state: Path) -> None:
    usage = shutil.disk_usage(state)
    metrics.state_disk_bytes.set(usage.total)
    metrics.state_disk_free_bytes.set(usage.free)
    metrics.state_bytes.set(_num_bytes_below(state))


def _num_bytes_below(folder: str | Path) -> int:
    """Returns the sizes of all files together. Files and folders that disappear meanwhile count as empty."""
    num_bytes = 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                is_folder = entry.is_dir(follow_symlinks=False)
                num_bytes += _num_bytes_below(entry.path) if is_folder else entry.stat(follow_symlinks=False).st_size
    return num_bytes


def _find_problem(state: Path, make_room: Callable[[], None]) -> str:
    problem = check_folder(state)
    if not problem:
        return ""
    try:
        make_room()
    except OSError as error:
        log.warning("cannot make room in the state directory", error=str(error))
    return check_folder(state)
