"""How long DistributedDataParallel exchanges gradients, and how much of it hides behind the backward pass.

Reads torch's own measurement of a wrapper's last step, which it makes for the first ten steps and then for every
hundredth; while a step is measured here, for each. The two underscored methods are what torch documents for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn.parallel import DistributedDataParallel

_NANOSECONDS = 1e9
_USUAL_RATE = 100


class Traffic:
    """wrappers: those whose gradients are exchanged; none where nothing can be measured."""

    def __init__(self, wrappers: Sequence[DistributedDataParallel]) -> None:
        self._wrappers = list(wrappers)
        self._steps = 0
        self._seconds = 0.0
        self._hidden_seconds = 0.0

    def start(self) -> None:
        for wrapper in self._wrappers:
            wrapper._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]  # see above

    def stop(self) -> None:
        for wrapper in self._wrappers:
            wrapper._set_ddp_runtime_logging_sample_rate(_USUAL_RATE)  # type: ignore[no-untyped-call]  # see above

    def end_step(self) -> None:
        """After a batch whose gradients were exchanged."""
        if not self._wrappers:
            return
        self._steps += 1
        for wrapper in self._wrappers:
            found = wrapper._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # see above
            self._seconds += found.get("backward_comm_time", 0) / _NANOSECONDS
            self._hidden_seconds += found.get("backward_compute_comm_overlap_time", 0) / _NANOSECONDS

    def take(self) -> dict[str, float]:
        """Mean seconds a step since the last call."""
        if not self._steps:
            return {}
        found = {
            "communication_seconds": self._seconds / self._steps,
            "hidden_communication_seconds": self._hidden_seconds / self._steps,
        }
        self._steps, self._seconds, self._hidden_seconds = 0, 0.0, 0.0
        return found
