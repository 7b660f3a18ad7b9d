"""Reads the beats of this machine's ranks, and on node rank 0 those of the whole gang, to detect a hang.

Owns the clock of the hang watchdog; `hang_rule.py` decides. The other members send their readings to node rank 0 over
the gang's links, and node rank 0 reports a hang to them. `hang_end.py` ends the ranks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import structlog

from gangline.domain.beat import Reading
from gangline.domain.failure import HangRule
from gangline.domain.state import ExitKind
from services.common.concurrency import cancel
from services.common.timer_grid import seconds_until_due
from services.trial_runner.gang.gang_links import GangLinks
from services.trial_runner.gang.gang_plan import Place
from services.trial_runner.gang.outcome import FailureRecord
from services.trial_runner.watchdog.beats import Beats, RemoteBeats, to_details, to_rows
from services.trial_runner.watchdog.hang_rule import Hang, ProgressWatch, find_hang, look
from services.trial_runner.watchdog.stacks import is_stopped

log = structlog.get_logger(__name__)

# Longest pause in seconds between two readings of the beats.
LOOK_SECONDS = 1.0
# Shortest pause in seconds, for rules with very short limits.
MIN_LOOK_SECONDS = 0.1


class Watchdog:
    """The hang watchdog of one member. on_hang: called once on node rank 0, with the rank that is furthest behind."""

    def __init__(
        self,
        place: Place,
        rule: HangRule,
        beats: Beats,
        remote: RemoteBeats,
        gang: GangLinks,
        *,
        on_hang: Callable[[FailureRecord], None],
    ) -> None:
        self._place = place
        self._rule = rule
        self._beats = beats
        self._remote = remote
        self._gang = gang
        self._on_hang = on_hang
        self._watching: asyncio.Task[None] | None = None

    def start(self, living: Callable[[], Iterable[int]], find_pid: Callable[[int], int]) -> None:
        """Starts the watch, unless the rule disables it. living: returns this machine's ranks that have not ended.
        find_pid: turns the pid in a beat file into that of this machine."""
        if self._rule.is_enabled:
            self._watching = asyncio.create_task(self._watch(living, find_pid))
            self._watching.add_done_callback(_log_failure)

    async def close(self) -> None:
        if self._watching is not None:
            await cancel(self._watching)

    async def _watch(self, living: Callable[[], Iterable[int]], find_pid: Callable[[int], int]) -> None:
        watch, looked_at = ProgressWatch(), time.monotonic()
        told: dict[int, Reading] = {}
        shortest = min(self._rule.seconds, self._rule.start_seconds, self._rule.rest_seconds)
        while True:
            # About four readings within the shortest limit, so a hang is found soon after its limit.
            period_seconds = max(MIN_LOOK_SECONDS, min(LOOK_SECONDS, shortest / 4))
            await asyncio.sleep(seconds_until_due(period_seconds, time.monotonic()))
            own = {rank: self._read(rank, find_pid) for rank in self._beats.living_files(living())}
            if not self._place.is_head:
                if own != told:
                    self._gang.tell_beats(to_rows(own), to_details(own))
                told = own
                continue
            now = time.monotonic()
            watch, looked_at = look(watch, self._remote.with_own(own), now - looked_at), now
            hang = find_hang(watch, self._rule)
            if hang is not None:
                self._tell(hang)
                return

    def _read(self, rank: int, find_pid: Callable[[int], int]) -> Reading:
        reading = self._beats.files[rank].read()
        return replace(reading, is_stopped=True) if reading.pid and is_stopped(find_pid(reading.pid)) else reading

    def _tell(self, hang: Hang) -> None:
        failure = FailureRecord(ExitKind.HANG, hang.message, hang.rank, self._remote.agent_of(hang.rank), time.time())
        self._gang.tell_hang(failure)
        self._on_hang(failure)


def _log_failure(watching: asyncio.Task[None]) -> None:
    if not watching.cancelled() and watching.exception() is not None:
        log.error("the hang watchdog broke: a hang of this trial ends nothing", error=repr(watching.exception()))
