"""Marks where a GPU stream waits for another one. Used by meters, while they measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def watched_waits(stream: torch.cuda.Stream, wait: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Has `wait` called, with what makes it wait, where this stream, being the current one, shall wait for an event or
    for another stream.

    torch tells nobody of such a wait, so its method is replaced meanwhile, in the whole process; other streams wait as
    they always do. Contexts of this kind end in the order opposite to that in which they began.
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
