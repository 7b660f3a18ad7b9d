"""What a thread of its own takes over from the thread that trains: its CUDA stream and its default device.

Both belong to a thread in torch. Work in another stream would read values before they are computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch


def current_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Returns the stream in which this thread computes on a device; None for one that has no streams."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def wait_for_stream(stream: torch.cuda.Stream | None, device: torch.device) -> None:
    """Lets this thread's stream wait for all that is in another one by now. This thread itself goes on."""
    current = current_stream(device)
    if stream is not None and current is not None and current != stream:
        current.wait_stream(stream)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Those of one thread, for another one."""

    stream: torch.cuda.Stream | None
    default_device: torch.device

    @classmethod
    def here(cls, device: torch.device) -> Surroundings:
        """device: on which the rank computes."""
        return cls(current_stream(device), torch.get_default_device())

    @contextmanager
    def taken_over(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self.stream is not None:
                stack.enter_context(torch.cuda.stream(self.stream))
            if torch.get_default_device() != self.default_device:
                stack.enter_context(self.default_device)
            yield
