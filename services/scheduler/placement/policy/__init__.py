"""PURE: the policies of resource pools, which order its requests. A new policy needs one file and one line here.

Start: priority.py
"""

from __future__ import annotations

from collections.abc import Callable

from services.scheduler.placement.policy import fair_share, fitting, priority, round_robin
from services.scheduler.placement.request.assignment import PoolPlan
from services.scheduler.placement.request.snapshot import PoolView

Policy = Callable[[PoolView, float], PoolPlan]

POLICIES: dict[str, Policy] = {
    "fair_share": fair_share.plan_pool,
    "fitting": fitting.plan_pool,
    "priority": priority.plan_pool,
    "round_robin": round_robin.plan_pool,
}
