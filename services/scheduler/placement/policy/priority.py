"""PURE: the policy `priority`: the most urgent first, then by queue position, then in the order of submission.

A request that does not fit may preempt less urgent work, where the pool allows that. The first request that still waits
holds a reservation. Others pass it only if they do not delay it, or on call: the first waiting request may have on-call
work stopped that has passed it. A request on call may preempt less urgent work too, on any agent, because the holder of
the reservation can stop either.

Work cannot be stopped for its equals again and again. It can be stopped only for a request that comes before it in the
queue; when that one starts, the stopped work returns to its own place. The request that started then did so in its
turn, so it is on call for no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from services.scheduler.placement.capacity.ledger import Ledger
from services.scheduler.placement.capacity.preemption import Victims
from services.scheduler.placement.capacity.victim import in_order, less_urgent
from services.scheduler.placement.explain.reason import close
from services.scheduler.placement.request.assignment import PoolPlan
from services.scheduler.placement.request.order import by_priority
from services.scheduler.placement.request.queue import PoolQueue
from services.scheduler.placement.request.snapshot import PendingRequest, PoolView, Running


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
    """Returns the work that the request may have stopped. victims, on_call: the least urgent first."""
    less_urgent_work = less_urgent(victims, request)
    if not on_call or ledger.reserved.reservation is not None:
        return less_urgent_work
    place = by_priority(request)
    equal = (work for work in on_call if work.priority == request.priority)
    return [*less_urgent_work, *(work for work in equal if by_priority(work) > place)]
