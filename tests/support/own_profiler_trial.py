"""A trial of eight batches that profiles itself, as the work of a gang of one rank.

After the first batch, batches 3 to 5 are ordered to be traced. The trial's own profile is written to own.json. The rank
is a process of its own because two sessions of torch's profiler at once end a process by a signal.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch.autograd import profiler, profiler_legacy

from gangline import pytorch
from gangline.core.link import Link
from gangline.pytorch.training import schedule as training_schedule
from tests.support.folder_work import in_folder
from tests.support.small_trial import SmallTrial, fit

BATCHES = 8
_CPU = [torch.profiler.ProfilerActivity.CPU]
# From which batch to which, counted from 1; what begins and ends it.
_SPANS: dict[str, tuple[int, int, Any]] = {
    "while ours warms up": (2, 2, lambda: torch.profiler.profile(activities=_CPU)),
    "in our last batch": (5, 5, lambda: torch.profiler.profile(activities=_CPU)),
    "longer than ours": (4, 7, lambda: torch.profiler.profile(activities=_CPU)),
    "autograd": (4, 4, profiler.profile),
    "legacy": (4, 4, profiler_legacy.profile),
}
_SCHEDULES = {
    "by a schedule that waits": {"wait": 4, "warmup": 1, "active": 2},
    "by a schedule that warms up": {"wait": 0, "warmup": 3, "active": 2},
}
KINDS = [*_SPANS, *_SCHEDULES]


class OneOrder(Link):
    has_told = False

    def take_trace(self) -> int:
        batches, self.has_told = 0 if self.has_told else 3, True
        return batches


class _Named(SmallTrial):
    """Each batch has a name in the profile."""

    def __init__(self, context: pytorch.PyTorchTrialContext, kind: str) -> None:
        super().__init__(context)
        self.kind = kind
        context.core.link = OneOrder()

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        with torch.profiler.record_function(f"batch {batch_idx + 1}"):
            return super().train_batch(batch, epoch_idx, batch_idx)


class _Spanning(_Named):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        first, last, make = _SPANS[self.kind]
        if batch_idx + 1 == first:
            self.own = make()
            self.own.__enter__()
        loss = super().train_batch(batch, epoch_idx, batch_idx)
        if batch_idx + 1 == last:
            self.own.__exit__(None, None, None)
            self.own.export_chrome_trace("own.json")
        return loss


class _Scheduled(_Named):
    def __init__(self, context: pytorch.PyTorchTrialContext, kind: str) -> None:
        super().__init__(context, kind)
        schedule = torch.profiler.schedule(**_SCHEDULES[kind], repeat=1)

        def write(profile: Any) -> None:
            profile.export_chrome_trace("own.json")

        self.own = torch.profiler.profile(activities=_CPU, schedule=schedule, on_trace_ready=write)
        self.own.start()

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = super().train_batch(batch, epoch_idx, batch_idx)
        self.own.step()
        return loss


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


@in_folder
def train(directory: Path, kind: str) -> list[str]:
    """Trains in that folder, with a profile of that kind. Returns what was logged."""
    lines = _Lines()
    logging.basicConfig(level=logging.INFO, handlers=[lines])
    training_schedule._MOST_BATCHES = 1
    make = _Spanning if kind in _SPANS else _Scheduled
    trial = fit(lambda context: make(context, kind), max_length=pytorch.Batch(BATCHES))
    assert trial.context.position.batches == BATCHES
    return lines.found
