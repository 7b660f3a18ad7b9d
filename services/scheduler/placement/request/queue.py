"""PURE: waiting requests by pool and kind, kept in order while requests are added and removed.

A plan considers a few requests of each kind, so the ones that it skips must cost nothing. Requests of one kind get the
same answer, except for their groups' caps, their length and the time before which they may not start.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import overload

from services.scheduler.placement.request.order import NaturalKey, OrderKey, by_priority, in_order
from services.scheduler.placement.request.snapshot import Kind, PendingRequest

_Place = tuple[OrderKey, NaturalKey]


class PoolQueue(Sequence[PendingRequest]):
    """Holds the requests that wait in one pool, in the pool's order, which is computed on first access. by_kind: the
    same requests by kind, each kind in order; no kind is empty."""

    def __init__(self, by_kind: Mapping[Kind, Sequence[PendingRequest]]) -> None:
        # Grouping keeps the cost of a plan independent of the requests that it skips.
        self.by_kind = by_kind

    @staticmethod
    def of(requests: Iterable[PendingRequest]) -> PoolQueue:
        """Builds a queue from requests in any order."""
        if isinstance(requests, PoolQueue):
            return requests
        by_kind: dict[Kind, list[PendingRequest]] = defaultdict(list)
        for request in in_order(requests):
            by_kind[request.kind].append(request)
        return PoolQueue(by_kind)

    def __len__(self) -> int:
        return sum(map(len, self.by_kind.values()))

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter(self._ordered)

    @overload
    def __getitem__(self, place: int) -> PendingRequest: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[PendingRequest]: ...
    def __getitem__(self, place: int | slice) -> PendingRequest | Sequence[PendingRequest]:
        return self._ordered[place]

    @cached_property
    def _ordered(self) -> list[PendingRequest]:
        return in_order(chain.from_iterable(self.by_kind.values()))


class ClusterQueue(Sequence[PendingRequest]):
    """Holds the requests that wait in all pools. As a sequence, it has them in no particular order, without sorting."""

    def __init__(self, by_pool: Mapping[str, PoolQueue]) -> None:
        self.by_pool = by_pool

    def __len__(self) -> int:
        return sum(map(len, self.by_pool.values()))

    def __iter__(self) -> Iterator[PendingRequest]:
        return (request for queue in self.by_pool.values() for line in queue.by_kind.values() for request in line)

    @overload
    def __getitem__(self, place: int) -> PendingRequest: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[PendingRequest]: ...
    def __getitem__(self, place: int | slice) -> PendingRequest | Sequence[PendingRequest]:
        return tuple(self)[place]


def by_pool(requests: Sequence[PendingRequest]) -> Mapping[str, PoolQueue]:
    if isinstance(requests, ClusterQueue):
        return requests.by_pool
    requests_by_pool: dict[str, list[PendingRequest]] = defaultdict(list)
    for request in requests:
        requests_by_pool[request.pool].append(request)
    return {pool: PoolQueue.of(waiting) for pool, waiting in requests_by_pool.items()}


class Queue:
    """Holds all waiting requests of a cluster. Each trial is in it at most once."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[Kind, _Line]] = {}

    def add(self, request: PendingRequest) -> None:
        self._lines.setdefault(request.pool, {}).setdefault(request.kind, _Line()).add(request)

    def remove(self, request: PendingRequest) -> None:
        """Removes a request that was added. The argument must equal the added one, because its kind and place find
        it."""
        lines = self._lines[request.pool]
        lines[request.kind].remove(request)
        if not lines[request.kind].requests:
            del lines[request.kind]
        if not lines:
            del self._lines[request.pool]

    def requests(self) -> ClusterQueue:
        """Returns the requests that wait now. Later changes of this queue do not change them."""
        return ClusterQueue(
            {
                pool: PoolQueue({kind: tuple(line.requests) for kind, line in lines.items()})
                for pool, lines in self._lines.items()
            }
        )


class _Line:
    """Holds the requests of one pool and kind, in order."""

    def __init__(self) -> None:
        # The sort key of each request, at the same index as in `requests`.
        self._places: list[_Place] = []
        self.requests: list[PendingRequest] = []

    def add(self, request: PendingRequest) -> None:
        place = by_priority(request)
        number = bisect_left(self._places, place)
        self._places.insert(number, place)
        self.requests.insert(number, request)

    def remove(self, request: PendingRequest) -> None:
        number = bisect_left(self._places, by_priority(request))
        del self._places[number], self.requests[number]


class Cursor:
    """Walks through the requests of one kind while a plan goes through a queue. ends: the shortest and the longest
    request; all between them get the answer of one of the two."""

    def __init__(self, requests: Sequence[PendingRequest]) -> None:
        self._requests = requests
        self._next = 0
        self.place = by_priority(requests[0])
        self._ends: tuple[PendingRequest, ...] = ()

    @property
    def ends(self) -> tuple[PendingRequest, ...]:
        if not self._ends:
            first = self._requests[0]
            # Only a bounded estimate can change an answer, so without one the first request represents all.
            if first.is_bounded and first.estimated_seconds:
                length = attrgetter("estimated_seconds")
                self._ends = (min(self._requests, key=length), max(self._requests, key=length))
            else:
                self._ends = (first,)
        return self._ends

    @property
    def is_fresh(self) -> bool:
        """Returns whether it is still at the first request."""
        return not self._next

    @property
    def head(self) -> PendingRequest:
        return self._requests[self._next]

    def advance(self) -> bool:
        """Moves to the next request; False when there is none."""
        self._next += 1
        return self._settle()

    def skip_to(self, place: _Place) -> bool:
        """Moves to the first request after this place; False when there is none."""
        self._next = bisect_right(self._requests, place, lo=self._next, key=by_priority)
        return self._settle()

    def _settle(self) -> bool:
        if self._next == len(self._requests):
            return False
        self.place = by_priority(self.head)
        return True
