"""PURE: agents join, are lost and come back; and an operator's decision on an agent or on some of its slots, with the
work that must leave because of it.

The leader owns availability and quarantine; an agent's own report of them is ignored. Enabling an agent ends its
quarantine and the exclusions that trials hold against it. A disabled agent or slot is drained: its work checkpoints,
gives all of its slots back and is requeued. Work on slots that the agent no longer has ends as a failure of the
machine. A transaction holds only so many of these, so `clear` handles the next ones and is called until it changes
nothing. The target is on record, so any leader can continue.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from gangline.domain.allocation import Allocation, ExitReport
from gangline.domain.experiment import Experiment
from gangline.domain.id import describe_allocation
from gangline.domain.resource import Agent, Slot, UndeliveredRecords
from gangline.domain.state import AgentState, Availability, ExitKind, State
from gangline.errors import GanglineError, not_found
from services.scheduler.state.records import Draft, Records, StateChange, get
from services.scheduler.state.rules import Rules
from services.scheduler.state.settled import settled_of
from services.scheduler.state.suggestion import describe_known
from services.scheduler.transition.exclusion import is_avoided, readmit_on, trusted_again
from services.scheduler.transition.exit import unended_agents
from services.scheduler.transition.retry import describe
from services.scheduler.transition.stop import StopOrder, stop_allocation

# An allocation takes three operations, of the 128 that etcd allows.
MAX_CLEARED = 32

ABSENT = "its agent does not have it now"


def update_availability(
    records: Records,
    agent_id: str,
    slot_ids: Sequence[str],
    availability: Availability,
    *,
    rules: Rules,
    now: float,
) -> StateChange:
    """Changes the availability. slot_ids: empty for the agent itself, whose slots keep their own. A change to the
    present value has no effect.

    Raises GanglineError `agent.not_found` or `slot.not_found`, naming the existing ones.
    """
    agent = find_agent(records, agent_id)
    existing_ids = {slot.id for slot in agent.known_slots}
    unknown = [slot_id for slot_id in slot_ids if slot_id not in existing_ids]
    if unknown:
        raise _no_slot(agent, unknown[0])
    if slot_ids:
        wanted = set(slot_ids)
        agent = replace(
            agent,
            slots=_with(agent.slots, wanted, availability),
            absent_slots=_with(agent.absent_slots, wanted, availability),
        )
    else:
        agent = replace(agent, availability=availability)
        if availability is Availability.ENABLED and is_avoided(records, agent):
            agent = trusted_again(agent, now)
    draft = Draft(records)
    draft.put(agent)
    clear_agent(draft, agent, rules, now)
    return draft.change


def find_agent(records: Records, agent_id: str) -> Agent:
    """Returns the agent. Raises GanglineError `agent.not_found`, naming the existing ones."""
    agent = records.find(Agent, agent_id)
    if agent is None:
        suggestion = describe_known("agent", agent_id, [agent.id for agent in records.all_of(Agent)])
        raise not_found("agent.not_found", f"there is no agent {agent_id!r}; {suggestion}")
    return agent


def keep_availability(agent: Agent, previous_agent: Agent | None) -> Agent:
    """Returns the agent as it describes itself, with the operators' decisions on it and on its slots. Slots that it no
    longer has are kept too: a slot that comes back is as it was left."""
    previous_by_id = {slot.id: slot for slot in previous_agent.known_slots} if previous_agent else {}
    slots = tuple(
        replace(
            slot,
            availability=previous_by_id[slot.id].availability if slot.id in previous_by_id else Availability.ENABLED,
        )
        for slot in agent.slots
    )
    gone = previous_by_id.keys() - {slot.id for slot in slots}
    absent = (
        previous_by_id[slot_id]
        for slot_id in sorted(gone)
        if previous_by_id[slot_id].availability is not Availability.ENABLED
    )
    return replace(
        agent,
        availability=previous_agent.availability if previous_agent else Availability.ENABLED,
        failed_starts=previous_agent.failed_starts if previous_agent else (),
        quarantined_until_at=previous_agent.quarantined_until_at if previous_agent else 0.0,
        quarantine_reason=previous_agent.quarantine_reason if previous_agent else "",
        trusted_at=previous_agent.trusted_at if previous_agent else 0.0,
        slots=slots,
        absent_slots=tuple(replace(slot, is_healthy=False, problem=ABSENT) for slot in absent),
    )


def _with(slots: Sequence[Slot], wanted: Collection[str], availability: Availability) -> tuple[Slot, ...]:
    return tuple(replace(slot, availability=availability) if slot.id in wanted else slot for slot in slots)


def clear(records: Records, agent_id: str, rules: Rules, now: float) -> StateChange:
    """Stops the next allocations that may not stay on this agent; the change is empty when none is left."""
    draft = Draft(records)
    agent = records.find(Agent, agent_id)
    if agent is not None:
        clear_agent(draft, agent, rules, now)
    return draft.change


def clear_agent(draft: Draft, agent: Agent, rules: Rules, now: float) -> None:
    """Does the same on a draft, with the agent in its new state; also readmits trials that no longer avoid it."""
    readmit_on(draft, agent, now)
    slot_by_id = {slot.id: slot for slot in agent.slots}
    allocations = [
        allocation for allocation in draft.allocations_on(agent.id) if allocation.state is not State.STOPPING
    ]
    orders = (
        (allocation, _order_for(draft, allocation, agent, slot_by_id, rules=rules, now=now))
        for allocation in allocations
    )
    due = [(allocation, order) for allocation, order in orders if order is not None]
    for allocation, order in due[:MAX_CLEARED]:
        stop_allocation(draft, allocation, order, now)


def _order_for(
    draft: Draft, allocation: Allocation, agent: Agent, slot_by_id: dict[str, Slot], *, rules: Rules, now: float
) -> StopOrder | None:
    """Returns the order to stop; None for an allocation that may stay or has ended here already."""
    if agent.id not in unended_agents(allocation):
        return None
    held_ids = [slot_id for member in allocation.members if member.agent_id == agent.id for slot_id in member.slot_ids]
    gone = [slot_id for slot_id in held_ids if slot_id not in slot_by_id]
    if gone:
        failure = _without_slots(allocation, agent, gone, now)
        return StopOrder(
            ExitKind.KILLED, describe(failure), now + rules.kill_grace_seconds + rules.force_seconds, failure
        )
    disabled = [slot_id for slot_id in held_ids if slot_by_id[slot_id].availability is Availability.DISABLED]
    if not disabled and agent.availability is not Availability.DISABLED:
        return None
    is_whole_agent = agent.availability is Availability.DISABLED
    what = f"agent {agent.id} is" if is_whole_agent else f"{_slots(disabled)} {'is' if len(disabled) == 1 else 'are'}"
    settled = settled_of(get(draft, Experiment, allocation.experiment_id).config_json)
    deadline_at = now + settled.preemption_timeout + rules.force_seconds
    return StopOrder(ExitKind.PREEMPTED, f"{what} disabled", deadline_at)


def _without_slots(allocation: Allocation, agent: Agent, gone: Sequence[str], now: float) -> ExitReport:
    message = f"no longer has {_slots(gone)}, held by {describe_allocation(allocation.id)}"
    return ExitReport(agent.id, ExitKind.AGENT_LOST, message, failed_at=now, ended_at=now)


def _slots(slot_ids: Sequence[str]) -> str:
    return f"slot{'' if len(slot_ids) == 1 else 's'} {', '.join(slot_ids)}"


def _no_slot(agent: Agent, slot_id: str) -> GanglineError:
    suggestion = describe_known("slot", slot_id, [slot.id for slot in agent.known_slots])
    return not_found("slot.not_found", f"agent {agent.id} has no slot {slot_id!r}; {suggestion}")


def registered(records: Records, agent: Agent, rules: Rules, now: float) -> StateChange:
    """Records an agent that has registered with its present slots. Nothing is written when all of it is on record
    already."""
    previous_agent = records.find(Agent, agent.id)
    registered_at = previous_agent.registered_at if previous_agent else now
    agent = keep_availability(agent, previous_agent)
    agent = replace(agent, state=AgentState.ALIVE, registered_at=registered_at, lost_at=0.0)
    agent = _checked(agent, previous_agent, now)
    return _known(records, agent, rules, now)


def slots_changed(
    records: Records,
    agent_id: str,
    slots: Sequence[Slot],
    rules: Rules,
    now: float,
    *,
    problem: str = "",
    undelivered: Sequence[UndeliveredRecords] = (),
) -> StateChange:
    """Records all slots of a connected agent again, its own problem, and the records that wait on its disk. An agent
    that counts as lost must register first."""
    previous_agent = records.find(Agent, agent_id)
    if previous_agent is None or previous_agent.state is AgentState.LOST:
        return StateChange()
    changed_agent = replace(previous_agent, slots=tuple(slots), problem=problem, undelivered=tuple(undelivered))
    agent = keep_availability(changed_agent, previous_agent)
    return _known(records, _checked(agent, previous_agent, now), rules, now)


def _checked(agent: Agent, previous_agent: Agent | None, now: float) -> Agent:
    """Trusts an agent again whose own check has become good, or of whose interfaces one that was down is up."""
    if previous_agent is None:
        return agent
    is_well_again = previous_agent.problem and not agent.problem
    was_down = {own.name for own in previous_agent.down_interfaces}
    is_linked_again = any(own.name in was_down for own in agent.interfaces if not own.is_virtual)
    return trusted_again(agent, now) if is_well_again or is_linked_again else agent


def lost(records: Records, agent_id: str, now: float) -> StateChange:
    """Marks an agent as lost because its lease has run out. Its work ends by `member_exited` with AGENT_LOST, one
    allocation at a time."""
    agent = records.find(Agent, agent_id)
    if agent is None or agent.state is AgentState.LOST:
        return StateChange()
    return StateChange(puts=(replace(agent, state=AgentState.LOST, lost_at=now),))


def _known(records: Records, agent: Agent, rules: Rules, now: float) -> StateChange:
    draft = Draft(records)
    draft.put(agent)
    clear_agent(draft, agent, rules, now)
    return draft.change


def unended_on(records: Records, agent_id: str) -> list[Allocation]:
    """Returns allocations that still wait for the end of their member on this agent."""
    return [allocation for allocation in records.allocations_on(agent_id) if agent_id in unended_agents(allocation)]
