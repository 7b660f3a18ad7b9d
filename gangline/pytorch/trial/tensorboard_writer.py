"""Makes writers of TensorBoard files.

Uses torch's own SummaryWriter where the package tensorboard is installed, else tensorboardX's, which has the same
methods and needs nothing but protobuf. Both are loaded when the first writer is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gangline.core.tensorboard import current_folder

# TensorBoard reloads files every 30 s, so a delay of 5 s does not show.
_GATHER_SECONDS = 5.0


def make_writer(directory: Path) -> Any:
    """Returns a SummaryWriter that writes into the folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter as TorchSummaryWriter  # noqa: PLC0415  see above

        return TorchSummaryWriter(str(directory))
    except ImportError:
        from tensorboardX import SummaryWriter  # noqa: PLC0415  see above

        return SummaryWriter(str(directory))


class GatheredScalars:
    """Collects the trainer's own scalars for several seconds before it passes them to a writer. Each transfer wakes the
    writer's threads, which delays the next batch. open_writer: called at the first transfer."""

    def __init__(self, open_writer: Callable[[], Any]) -> None:
        self._open_writer = open_writer
        self._waiting: list[tuple[str, float, int, float]] = []
        self._written_at = 0.0

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        """Adds scalars by name. The first ones are written at once."""
        now = time.time()
        self._waiting += [(name, value, step, now) for name, value in scalars.items()]
        if not 0 <= now - self._written_at < _GATHER_SECONDS:
            self.write()

    def write(self) -> None:
        """Writes all collected scalars."""
        if not self._waiting:
            return
        writer = self._open_writer()
        for scalar in self._waiting:
            writer.add_scalar(*scalar)
        self._waiting.clear()
        self._written_at = time.time()


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
