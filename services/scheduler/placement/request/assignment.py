"""PURE: the proposals of a policy for its pool, and reasons that are computed on first access.

A plan is committed at once, while its reasons are read later, by users. So the plan carries the inputs of the reasons,
and a reason is computed when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from gangline.domain.allocation import Reason
from services.scheduler.placement.request.snapshot_change import Change


@dataclass(frozen=True, slots=True)
class Assignment:
    """Gives a request its slots, all or nothing. 0 slots mean an auxiliary place."""

    trial_id: str
    slots_by_agent: Mapping[str, int]
    is_on_call: bool = False  # see Running
    shrink_reason: str = ""  # why it gets fewer slots than it asked for; empty if it gets all of them


@dataclass(frozen=True, slots=True)
class Preemption:
    """Stops a live allocation to make room for a request."""

    allocation_id: str
    for_trial_id: str
    is_growth: bool = False  # whether it makes room for its own trial, which starts again on all of its slots


@dataclass(frozen=True, slots=True)
class Reservation:
    """Keeps slots, from the time `at` on, for the most urgent request that has to wait."""

    trial_id: str
    at: float
    slots_by_agent: Mapping[str, int]


@dataclass(frozen=True)
class PoolPlan:
    """Holds the plan of one pool."""

    assignments: tuple[Assignment, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    # by trial id, the records behind the reason's `would_start_if`, for `apply_changes`
    changes: Mapping[str, tuple[Change, ...]] = field(default_factory=dict)
    reservation: Reservation | None = None
    # time at which another plan may decide otherwise although nothing has changed; None for never
    look_at: float | None = None
    promised: Mapping[str, int] = field(default_factory=dict)  # by limit, the slots that this plan gives away


V = TypeVar("V")


class Lazy(Mapping[str, V]):
    """Computes a mapping on first access. work_out: called at most once."""

    def __init__(self, work_out: Callable[[], Mapping[str, V]]) -> None:
        self._work_out = work_out

    def __getitem__(self, key: str) -> V:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    @cached_property
    def _values(self) -> dict[str, V]:
        return dict(self._work_out())
