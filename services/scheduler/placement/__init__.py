"""PURE: the planner: `plan(snapshot, now)` decides, and `gangline simulate` uses the same function on a snapshot file.
No module of this package reads a clock, a socket or a store.

Start: plan.py
"""

from services.scheduler.placement.plan import Plan, plan
from services.scheduler.placement.request.assignment import Assignment
from services.scheduler.placement.request.snapshot import (
    AgentRoom,
    Group,
    PendingRequest,
    PoolConfig,
    Running,
    Snapshot,
)
from services.scheduler.placement.request.snapshot_change import apply_changes

__all__ = [
    "AgentRoom",
    "Assignment",
    "Group",
    "PendingRequest",
    "Plan",
    "PoolConfig",
    "Running",
    "Snapshot",
    "apply_changes",
    "plan",
]
