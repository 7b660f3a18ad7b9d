"""PURE: which kinds of requests a queue holds. Those of one kind get one answer, but for their groups' caps, their
length and what they wait for in time; so a plan knows from a few of them when it is through with all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter

from services.scheduler.placement.snapshot import Kind, PendingRequest

Ends = tuple[PendingRequest, ...]
"""The shortest and the longest of one kind: all between are like one of the two. One where none has a length."""


def ends_of_kinds(queue: Sequence[PendingRequest]) -> list[Ends]:
    by_kind: dict[Kind, PendingRequest] = dict(zip(map(attrgetter("kind"), queue), queue, strict=True))
    timed: dict[Kind, list[PendingRequest]] = defaultdict(list)
    if any(request.estimated_seconds for request in by_kind.values()):
        for request in queue:
            if request.estimated_seconds:
                timed[request.kind].append(request)
    length = attrgetter("estimated_seconds")
    ends = [(min(found, key=length), max(found, key=length)) for found in timed.values()]
    return [*ends, *((request,) for kind, request in by_kind.items() if kind not in timed)]
