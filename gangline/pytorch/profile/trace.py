"""torch's own profiler, stepped by the trainer; its traces go to the trial's TensorBoard files.

Owns its configuration, by context.set_profiler or by the range of batches in the section `profiling`, and its steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gangline.errors import invalid

# A trace grows by megabytes a batch, and TensorBoard takes minutes to draw more.
MOST_BATCHES = 50


class Trace:
    """Of one trial on one rank. Does nothing until it was configured."""

    def __init__(self) -> None:
        self._options: dict[str, Any] | None = None
        self._profiler: Any = None

    @property
    def is_configured(self) -> bool:
        return self._options is not None

    def configure(self, *arguments: Any, **options: Any) -> None:
        """Arguments of torch.profiler.profile; on_trace_ready is the trainer's."""
        if arguments:
            raise invalid(
                "pytorch.profiler", "set_profiler takes its arguments by name, as in set_profiler(schedule=...)"
            )
        if self._profiler is not None:
            raise invalid("pytorch.profiler", "set_profiler was called while training; call it in the trial's __init__")
        self._options = options

    def configure_range(self, first: int, last: int) -> None:
        """The batches from first to last, counted from 0 in this process, at most MOST_BATCHES of them."""
        active = min(last - first + 1, MOST_BATCHES)
        warmup = min(first, 1)
        schedule = torch.profiler.schedule(wait=first - warmup, warmup=warmup, active=active, repeat=1)
        self._options = {"schedule": schedule}

    def start(self, directory: Path) -> None:
        """Before the first batch. directory: where traces go."""
        if self._options is None:
            return
        handler = torch.profiler.tensorboard_trace_handler(str(directory))
        self._profiler = torch.profiler.profile(**{**self._options, "on_trace_ready": handler})
        self._profiler.start()

    def step(self) -> None:
        """After each batch."""
        if self._profiler is not None:
            self._profiler.step()

    def stop(self) -> None:
        """After the last batch, also when training failed. May be called twice."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None
