"""Bars for work that takes long, on standard error, which leaves standard output to the result.

A bar appears only on a terminal, and only for work that has taken longer than a moment.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

from gangline.cli.output.terminal import is_error_terminal, raw_errors

if TYPE_CHECKING:
    from rich.progress import Progress

# Work that ends sooner shows no bar: it would only flash.
_DELAY_SECONDS = 0.3


class Bars:
    """Receives the client's progress inside of its context; see `OnProgress` in `gangline.client.record`. Any thread
    may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began_at: dict[str, float] = {}
        self._progress: Progress | None = None

    def __call__(self, work: str, num_bytes: int, total_bytes: int) -> None:
        if not is_error_terminal():
            return
        with self._lock:
            is_over = bool(total_bytes) and num_bytes >= total_bytes
            if self._progress is None:
                began_at = self._began_at.setdefault(work, time.monotonic())
                if is_over or time.monotonic() - began_at < _DELAY_SECONDS:
                    return
                self._progress = _start_bar(work, total_bytes)
            task = self._progress.task_ids[0]
            self._progress.update(task, completed=num_bytes, total=total_bytes or None)
            if is_over:
                self._end()

    def __enter__(self) -> Bars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A bar is left where the work has failed.
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _start_bar(work: str, total_bytes: int) -> Progress:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    from gangline.cli.output.live import CleanConsole  # noqa: PLC0415 - most commands show no bar

    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=CleanConsole(raw_errors()),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    progress.add_task(work, total=total_bytes or None)
    progress.start()
    return progress
