"""How long DistributedDataParallel exchanges gradients, and how much of it hides behind the backward pass.

Reads torch's own measurement of a wrapper's last step, which it makes for the first ten steps and then for every
hundredth; while a step is measured here, for each. The two underscored methods are what torch documents for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch.nn.parallel import DistributedDataParallel

_NANOSECONDS = 1e9
_USUAL_RATE = 100


class DdpMeter:
    """A TrafficMeter. wrappers: gives the present ones.

    An exchange counts from the first collective of a backward pass to the last, also while none is under way between
    two of them.
    """

    def __init__(self, wrappers: Callable[[], Sequence[DistributedDataParallel]]) -> None:
        self._wrappers = wrappers
        # When the newest exchange that was seen of a wrapper began.
        self._seen: WeakKeyDictionary[DistributedDataParallel, int | None] = WeakKeyDictionary()
        self._seconds = self._hidden_seconds = 0.0

    def start(self, is_in_step: Callable[[], bool]) -> None:
        self._set_rate(1)
        for wrapper in self._wrappers():
            self._seen[wrapper] = _read(wrapper).get("backward_comm_time_start")

    def stop(self) -> None:
        self._set_rate(_USUAL_RATE)

    def end_step(self) -> None:
        for wrapper in self._wrappers():
            found = _read(wrapper)
            began = found.get("backward_comm_time_start")
            # Not every model has a backward pass in every step; the numbers of its last one stay.
            if began is None or began == self._seen.get(wrapper):
                continue
            self._seen[wrapper] = began
            self._seconds += found["backward_comm_time"] / _NANOSECONDS
            self._hidden_seconds += found["backward_compute_comm_overlap_time"] / _NANOSECONDS
        # There may be another wrapper than in the step before, with a rate of its own.
        self._set_rate(1)

    def take(self) -> tuple[float, float]:
        found = self._seconds, self._hidden_seconds
        self._seconds = self._hidden_seconds = 0.0
        return found

    def _set_rate(self, rate: int) -> None:
        for wrapper in self._wrappers():
            wrapper._set_ddp_runtime_logging_sample_rate(rate)  # type: ignore[no-untyped-call]  # see above


def _read(wrapper: DistributedDataParallel) -> dict[str, Any]:
    """Of the newest backward pass. torch would look at its own marks at the next forward pass only."""
    assert wrapper.logger is not None
    wrapper.logger.set_runtime_stats_and_log()
    found: dict[str, Any] = wrapper._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # see above
    return found
