"""The orders to end the runner: SIGTERM for an orderly stop with a checkpoint, SIGQUIT for an end at once.

Owns the signal handlers and the current order. A later order can only be stricter.
"""

from __future__ import annotations

import asyncio
import signal
import time
import weakref
from collections.abc import Callable
from typing import ClassVar

from gangline.domain.state import ExitKind
from services.common.state_folder import SharedFolder
from services.trial_runner.exit_file import load_stop_deadline, load_stop_reason
from services.trial_runner.gang.outcome import Stop

# Time that the runner keeps for its own last steps before the agent's deadline.
MARGIN_SECONDS = 3.0


class StopRequest:
    """The current order. came: set once any order was given. on_order: called at each order."""

    def __init__(self, folder: SharedFolder, default_grace_seconds: float, on_order: Callable[[], None]) -> None:
        self._folder = folder
        self._default_grace_seconds = default_grace_seconds
        self.came = asyncio.Event()
        self.stop: Stop | None = None
        self.deadline_at = 0.0
        self._on_order = on_order

    def listen(self) -> None:
        """Takes signals for this allocation from now on, until `rest`."""
        loop = asyncio.get_running_loop()
        if loop not in _signals_by_loop:
            _signals_by_loop[loop] = _Signals(loop)
        _signals_by_loop[loop].listen(self.ask)

    def rest(self) -> None:
        """Restores the default, so a signal ends this process from now on."""
        _signals_by_loop[asyncio.get_running_loop()].rest()

    @property
    def grace_seconds(self) -> float:
        """The time that is left for the ranks; 0 for an end at once."""
        return max(0.0, self.deadline_at - time.time())

    def ask(self, kind: ExitKind, reason: str = "", grace_seconds: float | None = None) -> None:
        """Gives the order, unless a kill was ordered already.

        reason, grace_seconds: given if the scheduler orders by itself; otherwise they are read from the agent's record.
        """
        if self.stop is not None and self.stop.kind is ExitKind.KILLED:
            return
        now = time.time()
        self.stop = Stop(kind, reason or load_stop_reason(self._folder) or "asked by a signal")
        self.deadline_at = now
        if kind is ExitKind.PREEMPTED:
            # The agent kills the runner at its own deadline, whatever grace the runner would give.
            agents = load_stop_deadline(self._folder)
            own = now + (self._default_grace_seconds if grace_seconds is None else grace_seconds)
            self.deadline_at = max(now, min(own, agents - MARGIN_SECONDS)) if agents else own
        self.came.set()
        self._on_order()


class _Signals:
    """The handlers of one event loop. They are installed once, because asyncio needs longer for that than a short
    command runs. A process may run hundreds of commands one after another."""

    _KINDS: ClassVar = {
        signal.SIGTERM: ExitKind.PREEMPTED,
        signal.SIGQUIT: ExitKind.KILLED,
        signal.SIGINT: ExitKind.KILLED,
    }

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ask: Callable[[ExitKind], None] = lambda _: None
        for number, kind in self._KINDS.items():
            loop.add_signal_handler(number, self._on_signal, kind)
        self._handlers = {number: signal.getsignal(number) for number in self._KINDS}

    def listen(self, ask: Callable[[ExitKind], None]) -> None:
        self._ask = ask
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
            signal.siginterrupt(number, False)

    def rest(self) -> None:
        self._ask = lambda _: None
        for number in self._handlers:
            signal.signal(number, signal.SIG_DFL)

    def _on_signal(self, kind: ExitKind) -> None:
        self._ask(kind)


_signals_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Signals] = weakref.WeakKeyDictionary()
