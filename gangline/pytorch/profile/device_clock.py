"""Marks in the stream of work: wall-clock times on the CPU, events in its stream on a GPU.

A GPU's mark can be read once its work has reached it; no rank waits for that in the middle of a step.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Makes marks, which only this clock can read; pairs of them become seconds."""

    def mark(self) -> Any: ...

    def has_passed(self, mark: Any) -> bool:
        """Returns whether seconds up to this mark can be read."""
        ...

    def settle(self) -> None:
        """Waits until all marks made so far have passed."""
        ...

    def seconds(self, begin: Any, end: Any) -> float: ...


class WallClock:
    def mark(self) -> float:
        return time.perf_counter()

    def has_passed(self, mark: float) -> bool:
        return True

    def settle(self) -> None:
        pass

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class StreamClock:
    """device: a CUDA device; marks are recorded in the stream that is current where they are made."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        event.record(torch.cuda.current_stream(self._device))
        return event

    def has_passed(self, mark: torch.cuda.Event) -> bool:
        return bool(mark.query())  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(begin.elapsed_time(end)) / 1000


def clock_of(device: torch.device) -> Clock:
    return StreamClock(device) if device.type == "cuda" else WallClock()
