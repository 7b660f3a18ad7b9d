"""How the runner is asked to end: SIGTERM for an orderly stop with a checkpoint, SIGQUIT for an end at once.

Owns the signal handlers and what was asked. An order only gets stricter.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path

from gangline.domain.state import ExitKind
from services.trial_runner.exit_file import load_stop_deadline, load_stop_reason
from services.trial_runner.outcome import Stop

# Left to the runner for its own last steps before the agent's deadline.
MARGIN_SECONDS = 3.0


class StopOrder:
    """came: set once anything was asked. on_order: called at each order."""

    def __init__(self, directory: Path, default_grace_seconds: float) -> None:
        self._directory = directory
        self._default_grace_seconds = default_grace_seconds
        self.came = asyncio.Event()
        self.stop: Stop | None = None
        self.deadline_at = 0.0
        self.on_order: Callable[[], None] = lambda: None

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.ask, ExitKind.PREEMPTED)
        loop.add_signal_handler(signal.SIGQUIT, self.ask, ExitKind.KILLED)
        loop.add_signal_handler(signal.SIGINT, self.ask, ExitKind.KILLED)

    @property
    def grace_seconds(self) -> float:
        """What is left for the ranks; 0 for an end at once."""
        return max(0.0, self.deadline_at - time.time())

    def ask(self, kind: ExitKind, reason: str = "", grace_seconds: float | None = None) -> None:
        """reason, grace_seconds: where the scheduler asks by itself; else the agent has written them down."""
        if self.stop is not None and self.stop.kind is ExitKind.KILLED:
            return
        now = time.time()
        self.stop = Stop(kind, reason or load_stop_reason(self._directory) or "asked by a signal")
        self.deadline_at = now
        if kind is ExitKind.PREEMPTED:
            agents = load_stop_deadline(self._directory)
            own = now + (self._default_grace_seconds if grace_seconds is None else grace_seconds)
            self.deadline_at = max(now, min(own, agents - MARGIN_SECONDS)) if agents else own
        self.came.set()
        self.on_order()
