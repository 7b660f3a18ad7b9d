"""Runs torch's own profiler, stepped by the trainer; its traces go to the trial's TensorBoard files.

Owns its configuration, by context.set_profiler or by the range of batches in the section `profiling`, its steps, and
the traces that users order while the trial runs. A process has one such profiler at a time. An order never ends a
training: an obstacle is only logged, and a profiler of the trial's own takes precedence.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from gangline.domain.trace import MOST_BATCHES
from gangline.errors import invalid
from gangline.pytorch.profile import other_session

_log = logging.getLogger("gangline")


class Folder(Protocol):
    """Folder for traces. Files in `path` are uploaded to `url`."""

    @property
    def path(self) -> Any: ...

    @property
    def url(self) -> str: ...


@dataclass(slots=True)
class _Order:
    """Order of a trace."""

    first: int  # the batch that is traced first, counted from 1 over the trial
    path: Any
    url: str
    traced: int = -1  # number of traced batches; -1 until the trace has begun
    file: str = ""  # name of the written file

    @property
    def last(self) -> int:
        return self.first + self.traced - 1

    def write(self, profiler: Any) -> None:
        """Writes the trace, unless no batch was traced. The name has the form that TensorBoard's plugin expects:
        <worker>.<time>.pt.trace.json."""
        if self.traced < 1:
            return
        file = f"batches_{self.first}_to_{self.last}.{time.time_ns()}.pt.trace.json"
        profiler.export_chrome_trace(str(self.path / file))
        self.file = file


class Trace:
    """Traces one trial on one rank. is_on: whether the loop must call `step` after each batch."""

    def __init__(self) -> None:
        self.is_on = False
        self._options: dict[str, Any] | None = None
        self._num_steps = self._steps_left = math.inf
        self._profiler: Any = None
        self._order: _Order | None = None
        self._end_watch: Callable[[], None] | None = None

    @property
    def is_configured(self) -> bool:
        return self._options is not None

    def configure(self, *arguments: Any, **options: Any) -> None:
        """Sets the arguments of torch.profiler.profile; the trainer sets on_trace_ready."""
        if arguments:
            raise invalid(
                "pytorch.profiler", "set_profiler takes its arguments by name, as in set_profiler(schedule=...)"
            )
        if self._profiler is not None:
            raise invalid("pytorch.profiler", "set_profiler was called while training; call it in the trial's __init__")
        self._options = options

    def configure_range(self, first: int, last: int) -> None:
        """Traces the batches from first to last, counted from 0 in this process, at most MOST_BATCHES of them."""
        active = min(last - first + 1, MOST_BATCHES)
        warmup = min(first, 1)
        schedule = torch.profiler.schedule(wait=first - warmup, warmup=warmup, active=active, repeat=1)
        self._options = {"schedule": schedule}
        self._num_steps = first + active

    def start(self, folder: Folder) -> None:
        """Starts the configured profiler before the first batch. folder: destination of traces."""
        if self._options is not None:
            self._open(self._options, torch.profiler.tensorboard_trace_handler(str(folder.path)), self._num_steps)

    def order(self, batches: int, completed: int, folder: Folder, rest_beat: Callable[[], None]) -> None:
        """Begins an ordered trace between two batches. The profiler warms up in the next batch and traces `batches`
        after it.

        completed: completed batches of the trial. rest_beat: called when the trial's own code begins to profile, before
        the trace so far is written in the middle of a batch.
        """
        obstacle = self._obstacle()
        if obstacle:
            self.refuse(obstacle)
            return

        def give_way() -> None:
            rest_beat()
            self.cut("the trial's own code begins to profile")

        try:
            self._order = order = _Order(completed + 2, folder.path, folder.url)
            schedule = torch.profiler.schedule(wait=0, warmup=1, active=batches, repeat=1)
            self._open({"schedule": schedule}, order.write, 1 + batches)
            self._end_watch = other_session.watch(give_way)
        except Exception as error:  # noqa: BLE001  any error of torch, CUPTI or the storage; training continues
            self._give_up(error)
        else:
            _log.info("batches %d to %d are traced, as ordered", order.first, order.first + batches - 1)

    def refuse(self, why: str) -> None:
        """Logs that an ordered trace will not be made, and why."""
        _log.warning("the ordered trace is refused: %s", why)

    def step(self) -> None:
        """Steps the profiler. Called after each batch."""
        if self._order is None:
            self._step()
            return
        self._order.traced += 1
        try:
            self._step()
        except Exception as error:  # noqa: BLE001  any error of torch or a full disk; training continues
            self._give_up(error)

    def cut(self, why: str) -> None:
        """Ends an ordered trace early and writes the batches traced so far. Does nothing where no ordered trace is
        under way."""
        order = self._order
        if order is None:
            return
        if order.traced < 1:
            _log.warning("the ordered trace is not written: %s before its first batch was over", why)
        else:
            _log.info("the ordered trace ends after %d batches: %s", order.traced, why)
        try:
            self._close()
        except Exception as error:  # noqa: BLE001  any error of torch or a full disk; training continues
            self._give_up(error)

    def stop(self) -> None:
        """Stops the profiler after the last batch, also when training failed. May be called twice."""
        self.cut("training ended")
        if self._profiler is not None:
            self._close()

    def _obstacle(self) -> str:
        if self._order is not None:
            return "another one is under way"
        if self._profiler is not None:
            own = "set_profiler" if self._num_steps == math.inf else "begin_on_batch of the section profiling"
            return f"the trial traces itself by {own}, and torch has one profiler at a time"
        if other_session.is_open():
            return "the trial's own code runs torch's profiler, of which there is one at a time"
        return ""

    def _open(self, options: Mapping[str, Any], write: Callable[[Any], None], num_steps: float) -> None:
        """Starts the profiler. num_steps: number of steps after which it has no more to trace."""
        self._steps_left = num_steps
        self._profiler = torch.profiler.profile(**{**options, "on_trace_ready": write})
        self.is_on = True
        self._profiler.start()

    def _step(self) -> None:
        if self._profiler is None:
            return
        self._steps_left -= 1
        self._profiler.step()
        if self._steps_left <= 0:
            self._close()

    def _close(self) -> None:
        profiler, order = self._forget()
        profiler.stop()
        if order is not None and order.file:
            text = "the trace of batches %d to %d is written to %s/%s"
            _log.info(text, order.first, order.last, order.url, order.file)

    def _give_up(self, error: Exception) -> None:
        profiler, _ = self._forget()
        with contextlib.suppress(Exception):
            profiler.stop()
        _log.warning("the ordered trace fails: %s: %s", type(error).__name__, error)

    def _forget(self) -> tuple[Any, _Order | None]:
        profiler_and_order = (self._profiler, self._order)
        if self._end_watch is not None:
            self._end_watch()
        self._end_watch = None
        self.is_on = False
        self._profiler = self._order = None
        return profiler_and_order
