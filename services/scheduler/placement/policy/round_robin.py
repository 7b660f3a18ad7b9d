"""PURE: the policy `round_robin`: the groups take turns, one request each.

What a group runs already counts as turns that it has had. Nobody is stopped; gangs are protected by the reservation.
"""

from __future__ import annotations

from collections import Counter

from services.scheduler.placement.assignment import PoolPlan
from services.scheduler.placement.ledger import Ledger
from services.scheduler.placement.reason import close
from services.scheduler.placement.snapshot import PendingRequest, PoolView


def plan_pool(view: PoolView, now: float) -> PoolPlan:
    ledger = Ledger(view, now, is_order_fixed=False)
    for request in _by_turn(view):
        ledger.consider(request)
    return close(ledger)


def _by_turn(view: PoolView) -> list[PendingRequest]:
    turns = Counter(work.group for work in view.running)
    keyed: list[tuple[bool, int, int, PendingRequest]] = []
    for number, request in enumerate(view.requests):
        keyed.append((not request.is_first, turns[request.group], number, request))
        turns[request.group] += 1
    return [request for *_, request in sorted(keyed, key=lambda one: one[:3])]
