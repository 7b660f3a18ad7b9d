"""Marks a GPU stream's waits for another stream. Used by meters while they measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def watched_waits(stream: torch.cuda.Stream, wait: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Calls `wait` where this stream, being the current one, is about to wait for an event or another stream. Its
    argument is a function that makes the stream wait.

    torch has no hook for such a wait, so its method is replaced meanwhile, in the whole process; other streams wait as
    before. Contexts of this kind must end in the opposite order of their beginnings.
    """
    kind: Any = torch.cuda.Stream
    original = kind.wait_event

    def wait_event(waiting: torch.cuda.Stream, event: Any) -> None:
        if waiting == stream and torch.cuda.current_stream(stream.device) == stream:
            wait(lambda: original(waiting, event))
        else:
            original(waiting, event)

    kind.wait_event = wait_event
    try:
        yield
    finally:
        kind.wait_event = original
