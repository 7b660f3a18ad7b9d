"""Owns the agent's view of the records that ended runners have left in <state-dir>/spool: how many wait, since when.

The drainer delivers them (trial_runner/delivery/drainer.py). This module reads sizes and times only. It starts the
drainer again, which ends with the agent before this one or may be killed. The agent reports what waits: metrics, one
line of the log for each attempt, and its record at the scheduler, from which the trial's view gets a warning.
Runs as one long-lived task.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from gangline.domain.id import parse_allocation_id
from gangline.domain.resource import UndeliveredRecords
from gangline.errors import GanglineError
from services.agent.machine import metrics
from services.agent.machine.daemon_call import start_call
from services.common.drainer_process import start_drainer
from services.common.state_folder import StateFolder

SCAN_SECONDS = 5.0
# A runner and the drainer deliver what there is within seconds of the attempt's end, unless no gateway takes it.
USUAL_SECONDS = 15.0
# Attempts in the agent's record, which etcd stores and each hello carries; the metrics count all of them.
MAX_REPORTED = 100

log = structlog.get_logger(__name__)


class SpoolWatch:
    """Watches one state directory.

    token: the drainer delivers records of ended attempts under it.
    is_live: whether this agent has an allocation of this id that has not ended.
    on_change: called on the event loop with what waits, oldest first, when other attempts wait than before.
    """

    def __init__(
        self,
        state: StateFolder,
        token: str,
        is_live: Callable[[str], bool],
        on_change: Callable[[tuple[UndeliveredRecords, ...]], None],
    ) -> None:
        self._state = state
        self._token = token
        self._has_saved_token = False
        self._is_live = is_live
        self._on_change = on_change
        self._waiting: dict[str, UndeliveredRecords] = {}
        self._drainer: subprocess.Popen[bytes] | None = None

    async def run(self) -> None:
        """Watches until it is cancelled."""
        while True:
            self._save_token()
            try:
                left = await start_call(partial(list_spools, self._state.spools))
            except OSError as error:
                log.warning("cannot look for records that wait for a gateway", error=str(error))
            else:
                self.take_in([each for each in left if not self._is_live(each.allocation_id)], time.time())
            await asyncio.sleep(SCAN_SECONDS)

    def take_in(self, left: Sequence[UndeliveredRecords], now: float) -> None:
        """Takes what ended runners have left, as of now."""
        if left:
            self._start_drainer()
        late = [each for each in left if now - each.since_at > USUAL_SECONDS]
        metrics.undelivered_attempts.set(len(late))
        metrics.undelivered_bytes.set(sum(each.num_bytes for each in late))
        metrics.undelivered_age.set(max((now - each.since_at for each in late), default=0.0))
        waiting = {each.allocation_id: each for each in sorted(late, key=lambda each: each.since_at)}
        before, self._waiting = self._waiting, waiting
        for allocation_id in waiting.keys() - before.keys():
            log.warning(
                "logs and metrics of an ended attempt wait on disk: no gateway takes them",
                allocation_id=allocation_id,
                num_bytes=waiting[allocation_id].num_bytes,
            )
        for allocation_id in before.keys() - waiting.keys():
            log.info("logs and metrics of an ended attempt wait no longer", allocation_id=allocation_id)
        if waiting.keys() != before.keys():
            self._on_change(tuple(waiting.values())[:MAX_REPORTED])

    def _save_token(self) -> None:
        """Writes the token for the drainer. A full disk takes it at a later scan."""
        if self._has_saved_token:
            return
        try:
            self._state.save_drain_token(self._token)
        except OSError as error:
            log.warning("cannot write the drainer's token; trying again", error=str(error))
        else:
            self._has_saved_token = True

    def _start_drainer(self) -> None:
        """Starts a drainer unless one runs."""
        try:
            if (self._drainer is None or self._drainer.poll() is not None) and not self._state.has_drainer():
                self._drainer = start_drainer(self._state.spools)
        except OSError as error:
            log.error("cannot start the drainer; trying again", error=str(error))


def list_spools(spools: Path) -> list[UndeliveredRecords]:
    """Returns the records on disk by attempt, those of runners that live included."""
    found = []
    folders = list(spools.iterdir()) if spools.is_dir() else []
    for folder in folders:
        allocation_id = folder.name.rpartition("-")[0]
        # The drainer may delete a delivered segment at any moment.
        with suppress(GanglineError, OSError):
            trial_id = parse_allocation_id(allocation_id)[0]
            if segments := [path.stat() for path in folder.glob("*.seg")]:
                num_bytes = sum(segment.st_size for segment in segments)
                since_at = max(segment.st_mtime for segment in segments)
                found.append(UndeliveredRecords(trial_id, allocation_id, num_bytes, since_at))
    return found
