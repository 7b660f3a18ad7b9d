"""Ends streams and connections whose callers may not have them any more, also those that carry nothing.

Calls judge their callers when they begin, and streams before each part that they send. A stream that waits for the next
line of a log, or a shell that nobody types into, sends nothing. So one task judges the callers of all open ones again,
once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from gangline.errors import GanglineError

PERIOD_SECONDS = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, eq=False, slots=True)
class _Watched:
    key: str | None
    check: Callable[[], object]
    end: Callable[[GanglineError], object]


class AdmissionWatch:
    def __init__(self) -> None:
        self._watched: set[_Watched] = set()

    def __len__(self) -> int:
        return len(self._watched)

    @contextmanager
    def watched(
        self, check: Callable[[], object], end: Callable[[GanglineError], object], key: str | None = None
    ) -> Iterator[None]:
        """Calls `end` once, with the error, when `check` raises GanglineError while the block lasts. key: equal for
        those whose checks have the same result; None for a check of its own."""
        entry = _Watched(key, check, end)
        self._watched.add(entry)
        try:
            yield
        finally:
            self._watched.discard(entry)

    async def run(self) -> None:
        """Judges until it is cancelled."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            try:
                self.judge()
            except Exception:
                # The top of a long-lived task: a bug in one check must not keep the others open.
                log.exception("open streams could not be judged")

    def judge(self) -> None:
        """Ends those that may not go on."""
        errors: dict[str, GanglineError | None] = {}
        for entry in tuple(self._watched):
            if entry.key is None:
                error = _error_of(entry.check)
            elif entry.key in errors:
                error = errors[entry.key]
            else:
                error = errors[entry.key] = _error_of(entry.check)
            if error is not None:
                self._watched.discard(entry)
                entry.end(error)


def _error_of(check: Callable[[], object]) -> GanglineError | None:
    try:
        check()
    except GanglineError as error:
        return error
    return None
