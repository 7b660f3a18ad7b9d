"""Makes writers of TensorBoard files, and owns the one of a trial.

Uses torch's own SummaryWriter where the package tensorboard is installed, else tensorboardX's, which has the same
methods and needs nothing but protobuf. Both are loaded when the first writer is made.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gangline.core.closing import close_side_output
from gangline.core.tensorboard import current_folder

# TensorBoard reloads files every 30 s, so a delay of 5 s does not show.
_GATHER_SECONDS = 5.0
# Scalars that wait for a storage that takes nothing; older ones are dropped.
MOST_WAITING = 100_000
# Of the files, in a sentence that names what is not written.
_NAME = "TensorBoard files"
_log = logging.getLogger("gangline")


def make_writer(directory: Path) -> Any:
    """Returns a SummaryWriter that writes into the folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter as TorchSummaryWriter  # noqa: PLC0415  see above

        return TorchSummaryWriter(str(directory))
    except ImportError:
        from tensorboardX import SummaryWriter  # noqa: PLC0415  see above

        return SummaryWriter(str(directory))


class GatheredScalars:
    """Collects the trainer's own scalars for several seconds before a thread passes them to a writer. Each transfer
    wakes the writer's threads, which delays the next batch. A storage that takes nothing or hangs stops the thread, and
    not the training: the scalars wait, the newest MOST_WAITING of them.

    open_writer: called at the first transfer, and again after a transfer that failed.
    """

    def __init__(self, open_writer: Callable[[], Any]) -> None:
        self._open_writer = open_writer
        self._waiting: deque[tuple[str, float, int, float]] = deque(maxlen=MOST_WAITING)
        self._began_at = 0.0
        self._thread: threading.Thread | None = None
        self._writer: Any = None
        self._has_warned = False

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        """Adds scalars by name. The first ones are written at once."""
        now = time.time()
        self._waiting.extend((name, value, step, now) for name, value in scalars.items())
        if not 0 <= now - self._began_at < _GATHER_SECONDS and not self._is_writing:
            self._start()

    def write(self) -> None:
        """Writes all collected scalars. Waits until that is done."""
        self.wait()
        if self._waiting:
            self._start()
            self.wait()

    def wait(self) -> None:
        """Waits for the transfer under way."""
        if self._thread is not None:
            self._thread.join()

    @property
    def _is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _start(self) -> None:
        self._began_at = time.time()
        self._thread = threading.Thread(target=self._write, name="gangline-scalars", daemon=True)
        self._thread.start()

    def _write(self) -> None:
        try:
            if self._writer is None:
                self._writer = self._open_writer()
            while self._waiting:
                self._writer.add_scalar(*self._waiting[0])
                self._waiting.popleft()
        except Exception as error:  # noqa: BLE001  storage of any kind may fail in any way, and training goes on
            # A writer whose thread has failed takes nothing any more.
            self._writer = None
            if not self._has_warned:
                self._has_warned = True
                _log.warning("metrics do not reach TensorBoard: %s: %s", type(error).__name__, error)


class TrialWriter:
    """Writes a trial's TensorBoard files: the trial's own, and the metrics that the trainer reports. open_folder:
    returns the folder of this rank."""

    def __init__(self, open_folder: Callable[[], Path]) -> None:
        self._open_folder = open_folder
        self._writer: Any = None
        self._has_opened = False
        self._scalars = GatheredScalars(self._open)

    def writer(self) -> Any:
        """Returns the SummaryWriter, the same at each call until `close`."""
        if self._writer is None:
            self._writer = make_writer(self._open_folder())
        return self._writer

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        self._scalars.add(scalars, step)

    def flush(self) -> None:
        """Writes pending scalars and flushes the writer. It raises nothing, because a training is complete without its
        TensorBoard files."""
        close_side_output(_NAME, self._flush)

    def close(self) -> None:
        """Does the same and closes the writer."""
        close_side_output(_NAME, self._close)

    def _flush(self) -> None:
        self._scalars.write()
        if self._writer is not None:
            self._writer.flush()

    def _close(self) -> None:
        self._scalars.write()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _open(self) -> Any:
        """Opens the writer anew where the one before has failed, or returns the one that the trial uses too."""
        if self._has_opened:
            self._writer = None
        self._has_opened = True
        return self.writer()


class TorchWriter:
    """Provides a SummaryWriter as `writer`, on this rank's TensorBoard folder. Made in a trial, or after
    core.init()."""

    def __init__(self) -> None:
        self.writer = make_writer(current_folder().path)

    def add_scalar(self, name: str, value: Any, step: int) -> None:
        self.writer.add_scalar(name, value, step)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
