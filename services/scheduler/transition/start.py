"""PURE: a placed gang comes up: its agents accept, its runners report, it runs."""

from __future__ import annotations

from dataclasses import fields, replace

from gangline.domain.allocation import Allocation, Timeline
from gangline.domain.state import State
from services.scheduler.records import Change, Draft, Records
from services.scheduler.transition.exclusion import start_succeeded
from services.scheduler.transition.experiment import follow_allocation
from services.scheduler.transition.rules import Rules


def accepted(records: Records, allocation_id: str, accepted_at: float, rules: Rules, now: float) -> Change:
    """Records that every agent of the gang has accepted; accepted_at is the last one's time. From here on the deadline
    is for the runners."""
    allocation = records.find(Allocation, allocation_id)
    if allocation is None or allocation.state is not State.STARTING or allocation.timeline.accepted_at:
        return Change()
    draft = Draft(records)
    timeline = replace(allocation.timeline, accepted_at=accepted_at)
    deadline_at = now + rules.rendezvous_seconds + rules.start_seconds
    follow_allocation(draft, replace(allocation, timeline=timeline, deadline_at=deadline_at), now)
    return draft.change


def came_up(
    records: Records, allocation_id: str, node_rank: int, seen: Timeline, *, metrics_address: str, now: float
) -> Change:
    """Records the phases that a runner has seen. The gang runs once ranks are up on any member: all members have passed
    the rendezvous then, and a failure from here on is reported, not timed out."""
    allocation = records.find(Allocation, allocation_id)
    if allocation is None:
        return Change()
    draft = Draft(records)
    timeline = merge_timeline(allocation.timeline, seen)
    members = tuple(
        replace(member, metrics_address=metrics_address or member.metrics_address)
        if member.node_rank == node_rank
        else member
        for member in allocation.members
    )
    allocation = replace(allocation, timeline=timeline, members=members)
    if allocation.state is State.STARTING and timeline.ranks_up_at:
        allocation = replace(allocation, state=State.RUNNING, deadline_at=0.0)
        start_succeeded(draft, (member.agent_id for member in members))
    follow_allocation(draft, allocation, now)
    return draft.change


def merge_timeline(known: Timeline, seen: Timeline) -> Timeline:
    """Merges the phases: a phase ends for the gang when it ends on its last member. Phases that the scheduler times
    itself stay as they are."""
    # Set by the scheduler's clock.
    own = {"queued_at", "placed_at", "accepted_at"}
    latest = {
        field.name: max(getattr(known, field.name), getattr(seen, field.name))
        for field in fields(Timeline)
        if field.name not in own
    }
    return replace(known, **latest)
