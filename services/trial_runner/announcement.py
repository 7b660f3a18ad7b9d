"""The announcement of an attempt: the runner serves metrics, reports that the ranks run, and renews the lease.

Owns when this happens: once the ranks outlive the first moment or send a message, or before a step that may take long,
such as the startup hook. A command that has ended by then needs none of it: its exit reports everything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from services.trial_runner.attempt_lease import QUIET_SECONDS, AttemptLease
from services.trial_runner.delivery.recorder import Recorder
from services.trial_runner.delivery.reporter import Reporter
from services.trial_runner.delivery.running_report import RunningReport


class Announcement:
    """Announces one attempt. pids: returns those of the processes that the lease protects."""

    def __init__(
        self,
        running: RunningReport,
        reporter: Reporter,
        recorder: Recorder,
        lease: AttemptLease,
        pids: Callable[[], list[int]],
    ) -> None:
        self.is_made = False
        self._running = running
        self._reporter = reporter
        self._recorder = recorder
        self._lease = lease
        self._pids = pids
        self._timer: asyncio.TimerHandle | None = None

    def make(self) -> None:
        """Announces the attempt, unless that has happened."""
        if self.is_made:
            return
        self.is_made = True
        self._running.serve_metrics()
        self._reporter.open()
        self._lease.start(self._pids)

    def make_early(self, rendezvous_at: float, sentence: str) -> None:
        """Announces an attempt whose ranks are still to start. sentence: says in the trial's log what runs."""
        self._running.note_up(rendezvous_at, time.time())
        self._recorder.note(sentence)
        self.make()

    def make_soon(self, rendezvous_at: float, ranks_up_at: float) -> None:
        """Announces the attempt in QUIET_SECONDS, or reports that its ranks are up if it is announced already."""
        self._running.note_up(rendezvous_at, ranks_up_at)
        if self.is_made:
            self._running.send()
        self._lease.start_soon(self._pids)
        self._timer = asyncio.get_running_loop().call_later(QUIET_SECONDS, self.make)

    def cancel(self) -> None:
        """Drops an announcement that is not made yet, because the ranks have ended."""
        if self._timer is not None:
            self._timer.cancel()
