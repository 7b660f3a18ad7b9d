"""Times collectives that Python code starts, from the call to the completion, on the CPU or in a GPU's streams.

Owns the marks of one rank's collectives and of the computation's waits for them. On a GPU the marks are events, and
nothing waits for them before a report is due.

Marks where a GPU stream waits for another one, while a meter measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from gangline.pytorch.profile.device_clock import clock_of

Span = tuple[float, float]


def covered_seconds(spans: Iterable[Span]) -> float:
    """Returns the time that at least one span covers. A span is its begin and its end."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def seconds_outside(spans: Iterable[Span], others: Iterable[Span]) -> float:
    """Returns the time that at least one of the spans covers and none of the others."""
    others = list(others)
    return max(0.0, covered_seconds([*spans, *others]) - covered_seconds(others))


_NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass(slots=True)
class _Marks:
    """Pairs of begin and end."""

    collectives: list[tuple[Any, Any]] = field(default_factory=list)
    waits: list[tuple[Any, Any]] = field(default_factory=list)  # waits of the computation


class CollectiveTimer:
    """Implements TrafficMeter. device: of the collectives' tensors.

    The computation runs in the stream that is current at the call of `start`. It waits for every collective in this
    stream, and for every collective on the CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._clock = clock_of(device)
        self._is_in_step: Callable[[], bool] | None = None
        self._marks = _Marks()
        self._ended: list[_Marks] = []
        self._seconds = self._hidden_seconds = 0.0
        self._stream: torch.cuda.Stream | None = None

    def start(self, is_in_step: Callable[[], bool]) -> None:
        self._is_in_step = is_in_step
        if self._device.type == "cuda":
            self._stream = torch.cuda.current_stream(self._device)

    def stop(self) -> None:
        self._is_in_step = None

    def under_way(self) -> AbstractContextManager[None]:
        """Returns a context for the call of a synchronous collective."""
        return self._timed() if self.is_counting else _NOTHING

    @property
    def is_counting(self) -> bool:
        return self._is_in_step is not None and self._is_in_step()

    def mark(self) -> Any:
        """Returns a mark of this moment in the current stream."""
        return self._clock.mark()

    def add(self, begin: Any) -> Any:
        """Counts a collective in the current stream from a mark until now. Returns the mark of its end."""
        end = self._clock.mark()
        self._marks.collectives.append((begin, end))
        if self._runs_in_computation():
            self._marks.waits.append((begin, end))
        return end

    def add_wait(self, begin: Any) -> None:
        """Counts a wait of the computation for another stream, from a mark until now."""
        self._marks.waits.append((begin, self._clock.mark()))

    def end_step(self) -> None:
        self._ended.append(self._marks)
        self._marks = _Marks()
        while self._ended and self._has_passed(self._ended[0]):
            self._count(self._ended.pop(0))

    def take(self) -> tuple[float, float]:
        self._ended.append(self._marks)
        self._marks = _Marks()
        self._clock.settle()
        for marks in self._ended:
            self._count(marks)
        total_and_hidden = self._seconds, self._hidden_seconds
        self._ended, self._seconds, self._hidden_seconds = [], 0.0, 0.0
        return total_and_hidden

    def _runs_in_computation(self) -> bool:
        return self._stream is None or torch.cuda.current_stream(self._device) == self._stream

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begin = self.mark()
        yield
        self.add(begin)

    def _has_passed(self, marks: _Marks) -> bool:
        return all(self._clock.has_passed(end) for _, end in (*marks.collectives, *marks.waits))

    def _count(self, marks: _Marks) -> None:
        if not marks.collectives:
            return
        origin = marks.collectives[0][0]

        def spans(pairs: list[tuple[Any, Any]]) -> list[Span]:
            return [(self._clock.seconds(origin, begin), self._clock.seconds(origin, end)) for begin, end in pairs]

        collectives = spans(marks.collectives)
        self._seconds += covered_seconds(collectives)
        self._hidden_seconds += seconds_outside(collectives, spans(marks.waits))


@contextmanager
def watched_waits(stream: torch.cuda.Stream, wait: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Calls `wait` where this stream, being the current one, is about to wait for an event or another stream. Its
    argument is a function that makes the stream wait.

    torch has no hook for such a wait, so its method is replaced meanwhile, in the whole process; other streams wait as
    before. Contexts of this kind must end in the opposite order of their beginnings.
    """
    stream_class: Any = torch.cuda.Stream
    original = stream_class.wait_event

    def wait_event(waiting: torch.cuda.Stream, event: Any) -> None:
        if waiting == stream and torch.cuda.current_stream(stream.device) == stream:
            wait(lambda: original(waiting, event))
        else:
            original(waiting, event)

    stream_class.wait_event = wait_event
    try:
        yield
    finally:
        stream_class.wait_event = original
