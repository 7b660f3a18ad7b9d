"""PURE: the policy `fitting`: places every request by itself on the agents as they are; none takes room from another.

It answers "where would this go?" in a simulation. No pool of a cluster runs it, because two requests may get one slot.
"""

from __future__ import annotations

from dataclasses import replace

from services.scheduler.placement.capacity.ledger import Ledger
from services.scheduler.placement.explain.reason import close
from services.scheduler.placement.request.assignment import PoolPlan
from services.scheduler.placement.request.snapshot import PoolView


def plan_pool(view: PoolView, now: float) -> PoolPlan:
    plans = []
    for request in view.requests:
        ledger = Ledger(replace(view, requests=(request,)), now)
        ledger.consider(request)
        plans.append(close(ledger))
    return PoolPlan(
        assignments=tuple(assignment for plan in plans for assignment in plan.assignments),
        reasons={trial_id: reason for plan in plans for trial_id, reason in plan.reasons.items()},
        changes={trial_id: changes for plan in plans for trial_id, changes in plan.changes.items()},
    )
