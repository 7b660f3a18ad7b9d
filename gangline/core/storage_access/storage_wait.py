"""Waits for a storage that takes nothing, in place of ending the trial.

Owns the wait of one rank: the pauses between tries, the watch over calls that do not return, the words for state and
log, and the end of the wait by time or by a preemption. gangline.domain.storage.storage_fault decides which errors are
waited for. Ranks that save together try again together: the first of them pauses and decides for all. Off the cluster
no rank waits, because the user sees the error at once. Called by gangline.core.checkpoint and by
gangline.pytorch.checkpoint.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from gangline.core.beat import Beat, NoBeat
from gangline.core.link import Link
from gangline.core.storage_access.storage_calls import StorageCalls
from gangline.domain.failure import NOT_SAVED
from gangline.domain.storage.storage_fault import describe, waits
from gangline.errors import ErrorKind, GanglineError

# Pauses between two tries: the first one, and the limit to which they grow.
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
# A call without progress for so long is reported: the storage hangs.
SILENT_SECONDS = 10.0
# A call whose last progress is not longer ago moves.
MOVING_SECONDS = 1.0
# How long a preempted trial still tries to save after an error of its storage.
PREEMPTED_SECONDS = 5.0
# A preempted rank keeps this part of its grace for its end. A call that hangs cannot be distinguished from a slow one,
# so the rank waits for it until then.
LAST_SECONDS = 5.0
# Pause between two checks for a preemption and of the calls under way.
_LOOK_SECONDS = 0.2
_log = logging.getLogger("gangline")
T = TypeVar("T")


class Agreement(Protocol):
    """The ranks that save or restore together. The first of them broadcasts."""

    def broadcast(self, value: Any) -> Any: ...


class StorageWait:
    """The wait of one rank for one storage. calls: those of the storage. limit_seconds: after which the error is
    raised; 0 never waits."""

    def __init__(
        self,
        *,
        url: str,
        calls: StorageCalls,
        link: Link | None = None,
        beat: Beat | None = None,
        limit_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = calls
        self._url = url
        self._link = link or Link()
        self._beat = beat or NoBeat()
        self.limit_seconds = limit_seconds
        self._clock = clock
        self._is_waiting = False
        self._told = ""
        self._preempted_at: float | None = None

    def keep_trying(self, what: str, ranks: Agreement, work: Callable[[], T], *, is_first: bool = True) -> T:
        """Returns what the work returns, and tries again while its storage takes nothing. All ranks that save or
        restore together call it in step, each with work that fails on all of them alike. what: names the work.
        is_first: this rank pauses and decides for the others.

        Raises the work's own error where waiting does not help. Raises GanglineError `checkpoint.storage` after the
        limit, and `checkpoint.not_saved` on a preemption.
        """
        began_at, pause = self._clock(), FIRST_PAUSE_SECONDS
        try:
            while True:
                try:
                    result = work()
                except Exception as error:
                    if not self.limit_seconds or not waits(error):
                        raise
                    if not self._is_waiting:
                        began_at = self._clock()
                    end = ranks.broadcast(self._pause(what, error, began_at, pause) if is_first else None)
                    self._is_waiting = True
                    if end is not None:
                        raise GanglineError(*end) from error
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                else:
                    if self._is_waiting and is_first:
                        seconds = self._clock() - began_at
                        _log.info("the storage %s takes files again, after %.0f s", self._url, seconds)
                    return result
        finally:
            self._is_waiting = False
            self._tell("")

    def run(self, work: Callable[[], T]) -> T:
        """Runs the work in a thread of its own, which this one watches. The work may hang in a call of the storage, and
        this thread must still obey a preemption."""
        if not self.limit_seconds:
            return work()
        results: list[T] = []
        errors: list[BaseException] = []

        def carry() -> None:
            try:
                results.append(work())
            except BaseException as error:  # noqa: BLE001  it is raised again in the thread that waits
                errors.append(error)

        thread = threading.Thread(target=carry, name="gangline-storage", daemon=True)
        thread.start()
        self.join(thread)
        if errors:
            raise errors[0]
        return results[0]

    def join(self, thread: threading.Thread) -> None:
        """Waits for a thread that uses the storage. Raises as `keep_trying` where one of its calls hangs."""
        if not self.limit_seconds:
            thread.join()
            return
        thread.join(_LOOK_SECONDS)
        while thread.is_alive():
            silent_seconds = self._calls.silent_seconds()
            is_silent = silent_seconds >= SILENT_SECONDS
            if is_silent:
                self._watch_silence(silent_seconds)
            elif not self._is_waiting:
                self._tell("")
            # A call that moves counts as progress: a large checkpoint may take longer than a batch. One that stands
            # still is the hang watchdog's matter until it is known as a storage that hangs.
            if is_silent or self._is_waiting or 0 < silent_seconds < MOVING_SECONDS:
                self._beat.hold()
            thread.join(_LOOK_SECONDS)
        self._tell("")

    def _watch_silence(self, seconds: float) -> None:
        why = f"the storage {self._url} does not answer"
        if not self._told:
            _log.warning("%s for %.0f s; the trial waits for up to %.0f s", why, seconds, self.limit_seconds)
        if not self._is_waiting:
            self._tell(f"{why}; the trial waits for up to {self.limit_seconds:.0f} s")
        ends_at = self._link.preemption_ends_at
        is_preempted = ends_at is not None and self._clock() >= ends_at - LAST_SECONDS
        end = self._find_end(why, self._clock() - seconds, is_preempted)
        if end is not None:
            raise GanglineError(*end)

    def _pause(self, what: str, error: BaseException, began_at: float, seconds: float) -> tuple[Any, ...] | None:
        """Pauses before the next try. Returns None, or the arguments of the error that ends the wait."""
        is_named = isinstance(error, GanglineError)
        cause = describe(error) if is_named else f"the storage {self._url} takes nothing now ({describe(error)})"
        why = f"{what}: {cause}"
        if not self._is_waiting:
            _log.warning("%s; the trial waits and tries again for up to %.0f s", why, self.limit_seconds)
        self._is_waiting = True
        self._tell(f"{why}; it is tried again for up to {self.limit_seconds:.0f} s")
        until = self._clock() + seconds
        while True:
            end = self._find_end(why, began_at, self._is_preempted_since(began_at))
            if end is not None or self._clock() >= until:
                return end
            time.sleep(_LOOK_SECONDS)

    def _is_preempted_since(self, began_at: float) -> bool:
        """Returns whether a preemption has lasted for PREEMPTED_SECONDS of a wait which began at this time."""
        now = self._clock()
        if self._link.preemption is None:
            self._preempted_at = None
        elif self._preempted_at is None:
            self._preempted_at = now
        return self._preempted_at is not None and now - max(began_at, self._preempted_at) >= PREEMPTED_SECONDS

    def _find_end(self, why: str, began_at: float, is_preempted: bool) -> tuple[Any, ...] | None:
        """Returns the arguments of the error that ends a wait which began at this time; None while it goes on.
        is_preempted: a preemption leaves no more time."""
        if is_preempted:
            return NOT_SAVED, f"stopped without a checkpoint, because {why}", ErrorKind.UNAVAILABLE
        now = self._clock()
        if now - began_at >= self.limit_seconds:
            waited = f"the trial has waited for {now - began_at:.0f} s"
            return "checkpoint.storage", f"{why}; {waited}; earlier checkpoints are as they were", ErrorKind.UNAVAILABLE
        return None

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._link.send_waiting(text)
