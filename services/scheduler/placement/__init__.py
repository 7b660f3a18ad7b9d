"""PURE: the planner: `plan(snapshot, now)` decides, and `gangline simulate` uses the same function on a snapshot file.
No module of this package reads a clock, a socket or a store.

Start: plan.py
"""

from services.scheduler.placement.plan import Plan, plan
from services.scheduler.placement.request.assignment import Assignment, Preemption, Reservation
from services.scheduler.placement.request.snapshot import (
    AgentRoom,
    Group,
    PendingRequest,
    PoolConfig,
    Running,
    Snapshot,
)
from services.scheduler.placement.request.snapshot_change import Change, apply_change, apply_changes

__all__ = [
    "AgentRoom",
    "Assignment",
    "Change",
    "Group",
    "PendingRequest",
    "Plan",
    "PoolConfig",
    "Preemption",
    "Reservation",
    "Running",
    "Snapshot",
    "apply_change",
    "apply_changes",
    "plan",
]
