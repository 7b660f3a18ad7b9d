"""PURE: how many slots of a pool are free at each future time.

Time is cut into steps that grow by a constant factor, from seconds to months, so the number of steps does not depend on
the number of running and waiting requests. A step counts as free what is free at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil, log

# 160 steps that grow by 10 % from 15 s on reach about 20 months.
_FIRST_SECONDS = 15.0
_GROWTH = 1.1
_NUM_STEPS = 160
_LOG_GROWTH = log(_GROWTH)
_ENDS = (0.0, *(_FIRST_SECONDS * _GROWTH**number for number in range(_NUM_STEPS - 1)))
"""Seconds from now, of each step; the first one is now."""


class FreeSlots:
    """Holds the profile. ends: when slots come back, and how many."""

    def __init__(self, now: float, free: int, ends: Sequence[tuple[float, int]]) -> None:
        self._now = now
        freed = [0] * _NUM_STEPS
        # Whether slots come back in a step, and when the last ones have come back up to it. That is more exact than the
        # end of the step. It never goes back: what is free in a step may have come back in an earlier one.
        self._has_end = [False] * _NUM_STEPS
        last_end = [now] * _NUM_STEPS
        for end, slots in ends:
            step = self.step_at(end)
            freed[step] += slots
            self._has_end[step] = True
            last_end[step] = max(last_end[step], end)
        self._last_end = list(accumulate(last_end, max))
        freed[0] += free
        self.free = list(accumulate(freed))
        self._open = self.free
        self._num_kept = 0
        self._num_lent = 0

    def keep(self, slots: Sequence[int]) -> None:
        """Reserves so many of the free slots in each step, from the first on. Only runs that certainly end before the
        last reserved step may use them."""
        self._open = [free - kept for free, kept in zip(self.free, slots, strict=False)] + self.free[len(slots) :]
        self._num_kept = len(slots)

    def lend(self, num_steps: int) -> None:
        """Lets runs that start in the first `num_steps` steps need room in those steps alone: they give their slots
        back by the end of these."""
        self._num_lent = num_steps

    def step_at(self, at: float) -> int:
        """Returns the first step whose end is not before this time."""
        left = at - self._now
        if left <= _FIRST_SECONDS:
            return int(left > 0)
        # The epsilon keeps a time that is exactly a step's end in that step, despite rounding.
        return min(_NUM_STEPS - 1, 1 + ceil(log(left / _FIRST_SECONDS) / _LOG_GROWTH - 1e-9))

    def time_of(self, step: int) -> float:
        """Returns the time at which the slots that are free in this step have become free."""
        return self._last_end[step] if self._has_end[step] else self._now + _ENDS[step]

    def start_in(self, step: int, bound: float, slots: int) -> float:
        """Returns the start within a step that has room: the bound itself if there was room before the step already."""
        if step and step == self.step_at(bound) and self._open[step - 1] >= slots:
            return bound
        return max(bound, self.time_of(step))

    def take(self, start: int, end_at: float, slots: int) -> None:
        """Takes slots from this step until `end_at`; they come back one step later at the earliest."""
        end = max(start + 1, self.step_at(end_at))
        for free in (self.free,) if self._open is self.free else (self.free, self._open):
            free[start:end] = [left - slots for left in free[start:end]]
        if end < _NUM_STEPS:
            self._has_end[end] = True
        while end < _NUM_STEPS and self._last_end[end] < end_at:
            self._last_end[end] = end_at
            end += 1

    def find(self, slots: int, run_seconds: float, is_sure: bool, start: int) -> int | None:
        """Returns the first step, from `start` on, with room for a whole run; None if there is none. is_sure: the run
        is certain to take no longer."""
        while start < _NUM_STEPS:
            end = max(start + 1, self.step_at(self.time_of(start) + run_seconds))
            if start < self._num_lent:
                end = min(end, self._num_lent)
            # Kept slots count for runs that certainly end before the reservation needs them.
            free = self.free if is_sure and end <= self._num_kept else self._open
            if min(free[start:end]) >= slots:
                return start
            start = next(step for step in range(min(end, _NUM_STEPS) - 1, -1, -1) if free[step] < slots) + 1
        return None
