"""PURE: the policy `priority`: the most urgent first, then by queue position, then in the order of submission.

Whoever does not fit may have less urgent work stopped, where the pool allows that; the first who still waits holds a
reservation, and others pass it only where they do not delay it, or on call: whoever comes first of those that wait may
have those stopped that have passed it.

Nothing is stopped for its equals again and again: it can be stopped only for one that comes before it in the queue, at
whose start it goes back to its own place; and that one has started in its turn, so it is on call for nobody.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

from services.scheduler.placement.assignment import PoolPlan
from services.scheduler.placement.ledger import Ledger
from services.scheduler.placement.order import by_priority
from services.scheduler.placement.queue import PoolQueue
from services.scheduler.placement.reason import close
from services.scheduler.placement.snapshot import PendingRequest, PoolView, Running
from services.scheduler.placement.victim import in_order


def plan_pool(view: PoolView, now: float) -> PoolPlan:
    ledger = Ledger(view, now)
    victims = in_order(view.running, now) if view.config.is_preemption_on else []
    on_call = [work for work in victims if work.is_on_call] if view.config.is_on_call_possible else []
    queue = PoolQueue.of(view.requests)
    ledger.consider_queue(queue, lambda request: partial(_victims, request, victims, on_call, ledger))
    return close(ledger)


def _victims(
    request: PendingRequest, victims: Sequence[Running], on_call: Sequence[Running], ledger: Ledger
) -> Sequence[Running]:
    """victims, on_call: the least urgent first."""
    num_less_urgent = bisect_left(victims, -request.priority, key=lambda work: -work.priority)
    less_urgent = victims[:num_less_urgent]
    if not on_call or ledger.reservation is not None:
        return less_urgent
    place = by_priority(request)
    equal = (work for work in on_call if work.priority == request.priority)
    return [*less_urgent, *(work for work in equal if by_priority(work) > place)]
