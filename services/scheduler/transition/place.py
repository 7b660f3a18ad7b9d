"""PURE: a gang's way from a plan to RUNNING: its allocation is made, its agents accept, its runners report.

The planner counts slots on a snapshot; the slots get their ids here, after a check against the present records. An
assignment whose basis has changed (the request is gone, an agent was lost, a slot is taken) is turned down. An
allocation is placed whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from gangline.domain.allocation import Allocation, Member, Request, Timeline
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.id import allocation_id
from gangline.domain.resource import Agent
from gangline.domain.state import AgentState, Availability, State
from services.scheduler.placement.request.assignment import Assignment
from services.scheduler.state.hold import may_start
from services.scheduler.state.records import Draft, Records, StateChange, get
from services.scheduler.state.rules import Rules
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.exclusion import start_succeeded
from services.scheduler.transition.experiment import follow_allocation
from services.scheduler.transition.size import grow_time, may_have, sized


def free_slot_ids(records: Records, agent: Agent) -> list[str]:
    """Returns open slots that no live allocation holds, in the agent's order."""
    taken = taken_slot_ids(records, agent.id)
    return [slot.id for slot in agent.slots if slot.is_open and slot.id not in taken]


def taken_slot_ids(records: Records, agent_id: str) -> set[str]:
    """Returns the slots that live allocations hold. An allocation holds all of its slots until its last member has
    ended."""
    return {
        slot_id
        for allocation in records.allocations_on(agent_id)
        for member in allocation.members
        if member.agent_id == agent_id
        for slot_id in member.slot_ids
    }


def place(records: Records, assignment: Assignment, *, epoch: int, rules: Rules, now: float) -> StateChange:
    """Places the assignment. The change is empty when the assignment no longer holds; the next cycle plans anew."""
    trial_id, slots_by_agent = assignment.trial_id, assignment.slots_by_agent
    request = records.find(Request, trial_id)
    if request is None or request.not_before_at > now:
        return StateChange()
    experiment, slots = get(records, Experiment, request.experiment_id), sum(slots_by_agent.values())
    if not may_have(request, slots, settled_of(experiment.config_json), now):
        return StateChange()
    if not may_start(records, experiment, slots, now):
        return StateChange()
    # Slot ids are chosen last: all checks before can still turn the assignment down.
    members = _members(records, slots_by_agent, now)
    if members is None:
        return StateChange()
    trial = sized(get(records, Trial, trial_id), slots, request.slots, assignment.shrink_reason, now)
    attempt, is_shrunk = trial.attempts + 1, slots < request.slots
    allocation = Allocation(
        id=allocation_id(trial_id, attempt),
        trial_id=trial_id,
        experiment_id=trial.experiment_id,
        attempt=attempt,
        epoch=epoch,
        pool=request.pool,
        members=members,
        created_at=now,
        deadline_at=now + rules.accept_seconds,
        timeline=Timeline(queued_at=trial.timeline.queued_at, placed_at=now),
        checkpoint_id=trial.latest_checkpoint_id,
        is_on_call=assignment.is_on_call,
        full_slots=request.slots if is_shrunk else 0,
        shrink_reason=assignment.shrink_reason if is_shrunk else "",
        grow_at=grow_time(trial, rules) if is_shrunk else 0.0,
    )
    draft = Draft(records)
    draft.delete(Request, trial_id)
    draft.put(replace(trial, attempts=attempt, state=State.STARTING, reason=""))
    follow_allocation(draft, allocation, now)
    return draft.change


def _members(records: Records, slots_by_agent: Mapping[str, int], now: float) -> tuple[Member, ...] | None:
    """Chooses the slot ids; None if there are not enough. The member with the most slots comes first, so that rank 0
    has the most peers on its agent."""
    members: list[Member] = []
    order = sorted(slots_by_agent.items(), key=lambda item: (-item[1], item[0]))
    for node_rank, (agent_id, slots) in enumerate(order):
        agent = records.find(Agent, agent_id)
        if agent is None or agent.state is not AgentState.ALIVE or agent.availability is not Availability.ENABLED:
            return None
        if agent.problem or agent.quarantined_until_at > now:
            return None
        free = free_slot_ids(records, agent)
        if len(free) < slots:
            return None
        members.append(Member(agent_id, node_rank, tuple(free[:slots])))
    return tuple(members)


def accepted(records: Records, allocation_id: str, accepted_at: float, rules: Rules, now: float) -> StateChange:
    """Records that every agent of the gang has accepted; accepted_at is the last one's time. From here on the deadline
    is for the runners."""
    allocation = records.find(Allocation, allocation_id)
    if allocation is None or allocation.state is not State.STARTING or allocation.timeline.accepted_at:
        return StateChange()
    draft = Draft(records)
    timeline = replace(allocation.timeline, accepted_at=accepted_at)
    deadline_at = now + rules.rendezvous_seconds + rules.start_seconds
    follow_allocation(draft, replace(allocation, timeline=timeline, deadline_at=deadline_at), now)
    return draft.change


def came_up(records: Records, allocation_id: str, seen: Timeline, now: float) -> StateChange:
    """Records the phases that a runner has seen. The gang runs once ranks are up on any member: all members have passed
    the rendezvous then, and a failure from here on is reported, not timed out."""
    allocation = records.find(Allocation, allocation_id)
    if allocation is None:
        return StateChange()
    draft = Draft(records)
    timeline = merge_timeline(allocation.timeline, seen)
    allocation = replace(allocation, timeline=timeline)
    if allocation.state is State.STARTING and timeline.ranks_up_at:
        allocation = replace(allocation, state=State.RUNNING, deadline_at=0.0)
        start_succeeded(draft, (member.agent_id for member in allocation.members))
    follow_allocation(draft, allocation, now)
    return draft.change


def metrics_found(records: Records, allocation_id: str, agent_id: str, address: str) -> StateChange:
    """Records where the runner on an agent serves its metrics."""
    allocation = records.find(Allocation, allocation_id)
    if allocation is None:
        return StateChange()
    members = tuple(
        replace(member, metrics_address=address) if member.agent_id == agent_id else member
        for member in allocation.members
    )
    if members == allocation.members:
        return StateChange()
    return StateChange(puts=(replace(allocation, members=members),))


def merge_timeline(current: Timeline, seen: Timeline) -> Timeline:
    """Merges the phases: a phase ends for the gang when it ends on its last member. Phases that the scheduler times
    itself stay as they are."""
    # Set by the scheduler's clock.
    own = {"queued_at", "placed_at", "accepted_at"}
    latest = {
        field.name: max(getattr(current, field.name), getattr(seen, field.name))
        for field in fields(Timeline)
        if field.name not in own
    }
    return replace(current, **latest)
