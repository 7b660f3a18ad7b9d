"""PURE: detects that the cost of exchanges has changed since the partition was chosen.

It compares the part of a step that backward does not hide with its earlier value, step after step. When the compute
time changed too, the trial itself changed (other batches, another phase of training), which is no evidence of a changed
link.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

LEAST_STEPS_BETWEEN = 2000
_BASELINE_STEPS = 50
# Invariant: only a shift in this many steps in a row counts, so that a short disturbance never restarts tuning.
_LASTING_STEPS = 30
_SHIFT_RATIO = 0.25
_SAME_COMPUTE_RATIO = 0.10
_LEAST_SHARE_OF_STEP = 0.03
_WEIGHT = 0.1


@dataclass(slots=True)
class _Average:
    """Keeps the plain mean of the first steps, then an exponentially weighted one."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += max(_WEIGHT, 1 / self.count) * (value - self.value)


@dataclass(slots=True)
class Watch:
    """Begins when a partition is chosen."""

    steps: int = 0
    _exposed: _Average = field(default_factory=_Average)
    _compute: _Average = field(default_factory=_Average)
    _baseline: tuple[float, float] | None = None
    _shifted_steps: int = 0

    def update(self, exposed_seconds: float, compute_seconds: float) -> None:
        """Records one step. A missing time (NaN) is ignored."""
        self.steps += 1
        if not (math.isfinite(exposed_seconds) and math.isfinite(compute_seconds)):
            return
        self._exposed.add(exposed_seconds)
        self._compute.add(compute_seconds)
        if self._baseline is None:
            if self._exposed.count >= _BASELINE_STEPS:
                self._baseline = (self._exposed.value, self._compute.value)
            return
        self._shifted_steps = self._shifted_steps + 1 if self._is_off(*self._baseline) else 0

    @property
    def is_due(self) -> bool:
        """Returns whether tuning should begin again."""
        return self.steps >= LEAST_STEPS_BETWEEN and self._shifted_steps >= _LASTING_STEPS

    def _is_off(self, exposed: float, compute: float) -> bool:
        shift = abs(self._exposed.value - exposed)
        is_same_compute = abs(self._compute.value - compute) <= _SAME_COMPUTE_RATIO * compute
        is_felt = shift > _LEAST_SHARE_OF_STEP * (exposed + compute)
        return is_same_compute and is_felt and shift > _SHIFT_RATIO * exposed
