"""PURE: which kinds of requests a queue holds. Those of one kind get one answer, but for their groups' caps, their
length and what they wait for in time; so a plan knows from a few of them when it is through with all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.scheduler.placement.snapshot import Kind, PendingRequest


@dataclass(slots=True)
class Members:
    """Of one kind. last: the place of the last of them in the queue."""

    last: int
    shortest: PendingRequest
    longest: PendingRequest


def members_by_kind(queue: Sequence[PendingRequest]) -> Mapping[Kind, Members]:
    found: dict[Kind, Members] = {}
    for place, request in enumerate(queue):
        members = found.get(request.kind)
        if members is None:
            found[request.kind] = Members(place, request, request)
            continue
        members.last = place
        if request.estimated_seconds < members.shortest.estimated_seconds:
            members.shortest = request
        elif request.estimated_seconds > members.longest.estimated_seconds:
            members.longest = request
    return found
