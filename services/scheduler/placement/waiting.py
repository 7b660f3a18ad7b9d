"""PURE: the requests of a pool that its plan leaves waiting, each with the cause.

The ledger records the causes; reasons, counterfactuals and forecasts read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from services.scheduler.placement.snapshot import PendingRequest

Cause = Literal["held", "backoff", "never", "unhealthy", "quota", "claim", "behind", "full"]


class Waiting(NamedTuple):
    """Holds a request that waits. is_behind: whether others of its kind (with slots, or without) may precede it."""

    request: PendingRequest
    cause: Cause
    is_behind: bool


def in_turn(answers: Iterable[tuple[PendingRequest, Cause | None]], is_order_fixed: bool) -> list[Waiting]:
    """Returns the requests that wait. answers: every request of the pool in its turn; the cause is None for requests
    that start. A request in front counts for those behind it unless only time or its owner can start it."""
    # With slots, and without. Where the order is not fixed, another request may come even before the first.
    is_behind = {True: not is_order_fixed, False: not is_order_fixed}
    waiting = []
    for request, cause in answers:
        has_slots = request.slots > 0
        if cause is not None:
            waiting.append(Waiting(request, cause, is_behind[has_slots]))
        if cause not in ("held", "backoff"):
            is_behind[has_slots] = True
    return waiting
