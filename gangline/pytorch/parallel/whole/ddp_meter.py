"""Measures how long DistributedDataParallel exchanges gradients, and how much of it overlaps with the backward pass.

Reads torch's own measurement of a wrapper's last step. torch makes it for the first ten steps and then for every
hundredth. While the meter runs, torch makes it for each step. The two underscored methods are the ones that torch
documents for this purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch.nn.parallel import DistributedDataParallel

_NANOSECONDS = 1e9
# Steps between two of torch's own measurements: the default of DistributedDataParallel.
_USUAL_RATE = 100


class DdpMeter:
    """Implements TrafficMeter. wrappers: returns the present wrappers.

    An exchange counts from the first collective of a backward pass to the end of the last. The time between two
    collectives counts as well.
    """

    def __init__(self, wrappers: Callable[[], Sequence[DistributedDataParallel]]) -> None:
        self._wrappers = wrappers
        # Start time of the newest exchange that was read from a wrapper.
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
            timings = _read(wrapper)
            began = timings.get("backward_comm_time_start")
            # A model without a backward pass in this step keeps the numbers of its last one, which are counted already.
            if began is None or began == self._seen.get(wrapper):
                continue
            self._seen[wrapper] = began
            self._seconds += timings["backward_comm_time"] / _NANOSECONDS
            self._hidden_seconds += timings["backward_compute_comm_overlap_time"] / _NANOSECONDS
        # The wrapper may have been replaced since the last step, and a new one has torch's own rate.
        self._set_rate(1)

    def take(self) -> tuple[float, float]:
        total_and_hidden = self._seconds, self._hidden_seconds
        self._seconds = self._hidden_seconds = 0.0
        return total_and_hidden

    def _set_rate(self, rate: int) -> None:
        for wrapper in self._wrappers():
            wrapper._set_ddp_runtime_logging_sample_rate(rate)  # type: ignore[no-untyped-call]  # see above


def _read(wrapper: DistributedDataParallel) -> dict[str, Any]:
    """Returns torch's measurement of the newest backward pass. torch itself would read its marks at the next forward
    pass only."""
    assert wrapper.logger is not None
    wrapper.logger.set_runtime_stats_and_log()
    logging_data: dict[str, Any] = wrapper._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # see above
    return logging_data
