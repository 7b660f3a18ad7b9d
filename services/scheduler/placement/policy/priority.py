"""PURE: the policy `priority`: the most urgent first, then by queue position, then in the order of submission.

Whoever does not fit may have less urgent work stopped, where the pool allows that; the first who still waits holds a
reservation, and others pass it only where they do not delay it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from services.scheduler.placement.assignment import PoolPlan
from services.scheduler.placement.ledger import Ledger
from services.scheduler.placement.reason import close
from services.scheduler.placement.snapshot import PendingRequest, PoolView, Running
from services.scheduler.placement.victim import in_order


def plan_pool(view: PoolView, now: float) -> PoolPlan:
    ledger = Ledger(view, now)
    victims = in_order(view.running, now) if view.config.is_preemption_on else []
    for request in view.requests:
        ledger.consider(request, _less_urgent(request, victims))
    return close(ledger)


def _less_urgent(request: PendingRequest, victims: Sequence[Running]) -> Sequence[Running]:
    """victims: the least urgent first."""
    if not victims or victims[0].priority <= request.priority:
        return ()
    return victims[: bisect_left(victims, -request.priority, key=lambda work: -work.priority)]
