"""PURE: how many slots of a pool are free at which time to come.

Time is cut into steps that grow by a constant factor, from seconds to months, so the profile has as many of them for
any number of running and waiting requests. A step counts as free what is free at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil, log

_FIRST_SECONDS = 15.0
_GROWTH = 1.1
_NUM_STEPS = 160
_LOG_GROWTH = log(_GROWTH)
_ENDS = (0.0, *(_FIRST_SECONDS * _GROWTH**number for number in range(_NUM_STEPS - 1)))
"""Seconds from now, of each step; the first one is now."""


class Profile:
    """ends: when slots come back, and how many."""

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
        """So many of the free slots, from the first step on, are for those alone who are over before it ends."""
        self._open = [free - kept for free, kept in zip(self.free, slots, strict=False)] + self.free[len(slots) :]
        self._num_kept = len(slots)

    def lend(self, num_steps: int) -> None:
        """What starts in one of the first steps needs room in these alone: it gives its slots back by their end."""
        self._num_lent = num_steps

    def step_at(self, at: float) -> int:
        """The first step whose end is not before this time."""
        left = at - self._now
        if left <= _FIRST_SECONDS:
            return int(left > 0)
        return min(_NUM_STEPS - 1, 1 + ceil(log(left / _FIRST_SECONDS) / _LOG_GROWTH - 1e-9))

    def time_of(self, step: int) -> float:
        """When what is free in this step has become so."""
        return self._last_end[step] if self._has_end[step] else self._now + _ENDS[step]

    def start_in(self, step: int, bound: float, slots: int) -> float:
        """Where within a step that has room: at the bound itself if there was room before the step already."""
        if step and step == self.step_at(bound) and self._open[step - 1] >= slots:
            return bound
        return max(bound, self.time_of(step))

    def take(self, start: int, end_at: float, slots: int) -> None:
        """From this step until then; the slots come back in a later step at the earliest."""
        end = max(start + 1, self.step_at(end_at))
        for free in (self.free,) if self._open is self.free else (self.free, self._open):
            free[start:end] = [left - slots for left in free[start:end]]
        if end < _NUM_STEPS:
            self._has_end[end] = True
        while end < _NUM_STEPS and self._last_end[end] < end_at:
            self._last_end[end] = end_at
            end += 1

    def find(self, slots: int, run_seconds: float, is_sure: bool, start: int) -> int | None:
        """The first step, from this one on, with room for a whole run. is_sure: that the run takes no longer."""
        while start < _NUM_STEPS:
            end = max(start + 1, self.step_at(self.time_of(start) + run_seconds))
            if start < self._num_lent:
                end = min(end, self._num_lent)
            free = self.free if is_sure and end <= self._num_kept else self._open
            if min(free[start:end]) >= slots:
                return start
            start = next(step for step in range(min(end, _NUM_STEPS) - 1, -1, -1) if free[step] < slots) + 1
        return None
