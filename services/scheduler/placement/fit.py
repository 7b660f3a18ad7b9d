"""PURE: where one request fits into the room that is left.

Shared fit: a gang that fits into one agent's free slots goes to one agent. Dedicated fit: otherwise it takes whole idle
agents, see gang.py. The same input gives the same answer in every process.
"""

from __future__ import annotations

from collections.abc import Collection

from services.scheduler.placement.gang import find_gang
from services.scheduler.placement.room import Room, Slots, hash_of
from services.scheduler.placement.snapshot import PendingRequest


def find_fit(request: PendingRequest, room: Room, avoid: Collection[str] = ()) -> Slots | None:
    """Returns where the request fits now; None when it does not. avoid: agents to leave out besides its own
    blocklist."""
    blocked: Collection[str] = (
        {*request.blocklist, *avoid} if avoid and request.blocklist else avoid or request.blocklist
    )
    request_hash = hash_of(request.trial_id)
    if request.slots == 0:
        agent_id = room.find_auxiliary(request_hash, blocked)
        return None if agent_id is None else {agent_id: 0}
    agent_id = room.find_shared(request.slots, request_hash, blocked)
    if agent_id is not None:
        return {agent_id: request.slots}
    if request.is_single_agent or request.slots == 1:
        return None
    return find_gang(request.slots, request_hash, room, blocked)
