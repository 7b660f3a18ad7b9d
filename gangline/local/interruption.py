"""Makes Ctrl-C and SIGTERM awaitable, for a command that stays in the foreground until then.

As an exception, Ctrl-C can be raised inside a finalizer, where Python drops it. A handler that only writes to a pipe
loses no signal. Used by `gangline up --no-detach`, in the main thread.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from gangline.local.identity import Identity

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Takes over the signals inside its `with` block, and restores their handlers at its end."""

    def __enter__(self) -> Interruption:
        self._undo = ExitStack()
        self._came, written = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._undo.callback(os.close, self._came)
        self._undo.callback(os.close, written)
        former = signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        self._undo.callback(signal.set_wakeup_fd, former)
        for number in _SIGNALS:
            self._undo.callback(signal.signal, number, signal.signal(number, _do_nothing))
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def wait(self, process: Identity) -> bool:
        """Waits until a signal has arrived or the process has ended. Returns True for a signal."""
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return False
        try:
            awaited = [self._came, descriptor] if process.is_alive() else [self._came]
            readable, _, _ = select.select(awaited, [], [], None if descriptor in awaited else 0)
        finally:
            os.close(descriptor)
        return self._came in readable


def _do_nothing(*_: Any) -> None:
    """Does nothing. The wake-up pipe gets a byte for every signal that has a handler."""
