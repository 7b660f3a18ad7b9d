"""torch's own profiler, stepped by the trainer; its traces go to the trial's TensorBoard files.

Owns its configuration, by context.set_profiler or by the range of batches in the section `profiling`, its steps, and
the traces that users order while the trial runs. A process has one such profiler at a time, and an order never ends a
training: what stands in its way is said in the log, and a profiler of the trial's own goes first.
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
    """What is written to `path` comes to lie at `url`."""

    @property
    def path(self) -> Any: ...

    @property
    def url(self) -> str: ...


@dataclass(slots=True)
class _Order:
    """first: the batch that is traced first, counted from 1 over the trial. traced: how many have been. file: what was
    written."""

    first: int
    path: Any
    url: str
    traced: int = -1
    file: str = ""

    @property
    def last(self) -> int:
        return self.first + self.traced - 1

    def write(self, profiler: Any) -> None:
        """With a name that TensorBoard's plugin knows: <worker>.<time>.pt.trace.json. Nothing where no batch was
        traced."""
        if self.traced < 1:
            return
        file = f"batches_{self.first}_to_{self.last}.{time.time_ns()}.pt.trace.json"
        profiler.export_chrome_trace(str(self.path / file))
        self.file = file


class Trace:
    """Of one trial on one rank. is_on: whether it is to be told of each batch."""

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
        self._num_steps = first + active

    def start(self, folder: Folder) -> None:
        """Before the first batch. folder: where traces go."""
        if self._options is not None:
            self._open(self._options, torch.profiler.tensorboard_trace_handler(str(folder.path)), self._num_steps)

    def order(self, batches: int, completed: int, folder: Folder, rest: Callable[[], None]) -> None:
        """Between two batches: traces so many, after one in which the profiler warms up. completed: batches of the
        trial that lie behind. rest: called before what there is gets written in the midst of a batch, as the trial's
        own code begins to profile."""
        obstacle = self._obstacle()
        if obstacle:
            self.refuse(obstacle)
            return

        def give_way() -> None:
            rest()
            self.cut("the trial's own code begins to profile")

        try:
            self._order = order = _Order(completed + 2, folder.path, folder.url)
            schedule = torch.profiler.schedule(wait=0, warmup=1, active=batches, repeat=1)
            self._open({"schedule": schedule}, order.write, 1 + batches)
            self._end_watch = other_session.watch(give_way)
        except Exception as error:  # noqa: BLE001  of torch, CUPTI or the storage, and training goes on
            self._give_up(error)
        else:
            _log.info("batches %d to %d are traced, as ordered", order.first, order.first + batches - 1)

    def refuse(self, why: str) -> None:
        """Tells whoever ordered a trace that there will be none."""
        _log.warning("the ordered trace is refused: %s", why)

    def step(self) -> None:
        """After each batch."""
        if self._order is None:
            self._step()
            return
        self._order.traced += 1
        try:
            self._step()
        except Exception as error:  # noqa: BLE001  of torch or a full disk, and training goes on
            self._give_up(error)

    def cut(self, why: str) -> None:
        """Ends an ordered trace early; what there is gets written. Nothing where none is under way."""
        order = self._order
        if order is None:
            return
        if order.traced < 1:
            _log.warning("the ordered trace is not written: %s before its first batch was over", why)
        else:
            _log.info("the ordered trace ends after %d batches: %s", order.traced, why)
        try:
            self._close()
        except Exception as error:  # noqa: BLE001  of torch or a full disk, and training goes on
            self._give_up(error)

    def stop(self) -> None:
        """After the last batch, also when training failed. May be called twice."""
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
        """num_steps: after which it has no more to trace."""
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
        found = (self._profiler, self._order)
        if self._end_watch is not None:
            self._end_watch()
        self._end_watch = None
        self.is_on = False
        self._profiler = self._order = None
        return found
