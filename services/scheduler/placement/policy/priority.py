"""PURE: the policy `priority`: the most urgent first, then by queue position, then in the order of submission.

Whoever does not fit may have less urgent work stopped, where the pool allows that; the first who still waits holds a
reservation, and others pass it only where they do not delay it, or on call: whoever comes first of those that wait may
have those stopped that have passed it. A request on call may have less urgent work stopped as well, on whatever agents:
the holder of the reservation can stop the one as well as the other.

Nothing is stopped for its equals again and again: it can be stopped only for one that comes before it in the queue, at
whose start it goes back to its own place; and that one has started in its turn, so it is on call for nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from services.scheduler.placement.assignment import PoolPlan
from services.scheduler.placement.ledger import Ledger, Victims
from services.scheduler.placement.order import by_priority
from services.scheduler.placement.queue import PoolQueue
from services.scheduler.placement.reason import close
from services.scheduler.placement.snapshot import PendingRequest, PoolView, Running
from services.scheduler.placement.victim import in_order, less_urgent


def plan_pool(view: PoolView, now: float) -> PoolPlan:
    ledger = Ledger(view, now)
    is_on = view.config.is_preemption_on
    victims = in_order(view.running, now) if is_on else []
    auxiliary = in_order(view.running, now, is_auxiliary=True) if is_on else []
    on_call = [work for work in victims if work.is_on_call] if view.config.is_on_call_possible else []
    queue = PoolQueue.of(view.requests)

    def victims_for(request: PendingRequest) -> Victims:
        if not request.slots:
            return partial(less_urgent, auxiliary, request)
        return partial(_victims, request, victims, on_call, ledger)

    ledger.consider_queue(queue, victims_for)
    return close(ledger)


def _victims(
    request: PendingRequest, victims: Sequence[Running], on_call: Sequence[Running], ledger: Ledger
) -> Sequence[Running]:
    """victims, on_call: the least urgent first."""
    found = less_urgent(victims, request)
    if not on_call or ledger.reservation is not None:
        return found
    place = by_priority(request)
    equal = (work for work in on_call if work.priority == request.priority)
    return [*found, *(work for work in equal if by_priority(work) > place)]
