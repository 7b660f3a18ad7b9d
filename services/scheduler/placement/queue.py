"""PURE: waiting requests in the planner's order, kept while they come and go, so that a cycle need not sort them."""

from __future__ import annotations

from bisect import bisect_left

from services.scheduler.placement.order import NaturalKey, OrderKey, by_priority
from services.scheduler.placement.snapshot import PendingRequest

_Place = tuple[str, OrderKey, NaturalKey]


class InOrder(tuple[PendingRequest, ...]):
    """Requests that stand pool by pool in the planner's order."""

    __slots__ = ()


class Queue:
    """Each trial at most once."""

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._requests: list[PendingRequest] = []

    def add(self, request: PendingRequest) -> None:
        place = _place_of(request)
        number = bisect_left(self._places, place)
        self._places.insert(number, place)
        self._requests.insert(number, request)

    def remove(self, request: PendingRequest) -> None:
        """One that was added, as it was then."""
        number = bisect_left(self._places, _place_of(request))
        del self._places[number], self._requests[number]

    def requests(self) -> InOrder:
        return InOrder(self._requests)


def _place_of(request: PendingRequest) -> _Place:
    return request.pool, *by_priority(request)
