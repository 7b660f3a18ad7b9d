"""PURE: orders live allocations to end.

STOPPING waits for every member to report its end. An agent ends what is left after the grace; the deadline adds the
time that it may need to report that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gangline.domain.allocation import Allocation, ExitReport
from gangline.domain.state import ExitKind, State
from services.scheduler.state.records import Draft, Records, StateChange
from services.scheduler.transition.experiment import follow_allocation


@dataclass(frozen=True, slots=True)
class StopOrder:
    """Holds an order to stop."""

    kind: ExitKind  # PREEMPTED lets the trial checkpoint first, KILLED ends it
    reason: str
    deadline_at: float  # time by which an agent must have reported the end, its grace included
    failure: ExitReport | None = None  # failure that the scheduler found by itself; None without one


def grace_left(allocation: Allocation, force_seconds: float, now: float) -> float:
    """Returns the seconds that a stopping allocation has until its ranks must have ended."""
    return max(0.0, allocation.deadline_at - now - force_seconds)


def stop(records: Records, allocation_id: str, order: StopOrder, now: float) -> StateChange:
    """Stops an allocation. A second stop changes nothing, except that KILLED overrides PREEMPTED."""
    allocation = records.find(Allocation, allocation_id)
    if allocation is None:
        return StateChange()
    draft = Draft(records)
    stop_allocation(draft, allocation, order, now)
    return draft.change


def stop_allocation(draft: Draft, allocation: Allocation, order: StopOrder, now: float) -> None:
    """Does the same on a draft. The first failure found is kept."""
    is_escalation = allocation.stop_kind is ExitKind.PREEMPTED and order.kind is ExitKind.KILLED
    if allocation.state is State.STOPPING and not is_escalation:
        return
    stopping = replace(
        allocation,
        state=State.STOPPING,
        stop_kind=order.kind,
        stop_reason=order.reason,
        deadline_at=order.deadline_at,
        failure=allocation.failure or order.failure,
    )
    follow_allocation(draft, stopping, now)
