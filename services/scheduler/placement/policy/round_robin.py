"""PURE: the policy `round_robin`: the groups take turns, one request each.

Running work counts as turns that its group has had. Auxiliary places go by priority, without turns. The policy preempts
no work; the reservation protects gangs.
"""

from __future__ import annotations

from collections import Counter

from services.scheduler.placement.capacity.ledger import Ledger
from services.scheduler.placement.explain.reason import close
from services.scheduler.placement.request.assignment import PoolPlan
from services.scheduler.placement.request.snapshot import PendingRequest, PoolView


def plan_pool(view: PoolView, now: float) -> PoolPlan:
    ledger = Ledger(view, now, is_order_fixed=False)
    for request in _by_turn(view):
        ledger.consider(request)
    return close(ledger)


def _by_turn(view: PoolView) -> list[PendingRequest]:
    turns = Counter(work.group for work in view.running if work.slots)
    keyed: list[tuple[bool, int, int, PendingRequest]] = []
    for number, request in enumerate(view.requests):
        turn = 0
        if request.slots:
            turn = turns[request.group]
            turns[request.group] += 1
        keyed.append((not request.is_first, turn, number, request))
    return [request for *_, request in sorted(keyed, key=lambda entry: entry[:3])]
