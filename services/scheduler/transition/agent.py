"""PURE: agents join, change, are lost and come back. Their record lives until it is removed; only its state changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gangline.domain.allocation import Allocation
from gangline.domain.resource import Agent, Slot
from gangline.domain.state import AgentState
from services.scheduler.state.records import Draft, Records, StateChange
from services.scheduler.transition.availability import clear_agent, keep_availability
from services.scheduler.transition.exclusion import trusted_again
from services.scheduler.transition.exit import unended_agents
from services.scheduler.transition.rules import Rules


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
    records: Records, agent_id: str, slots: Sequence[Slot], rules: Rules, now: float, *, problem: str = ""
) -> StateChange:
    """Records all slots of a connected agent again, and its own problem. An agent that counts as lost must register
    first."""
    previous_agent = records.find(Agent, agent_id)
    if previous_agent is None or previous_agent.state is AgentState.LOST:
        return StateChange()
    agent = keep_availability(replace(previous_agent, slots=tuple(slots), problem=problem), previous_agent)
    return _known(records, _checked(agent, previous_agent, now), rules, now)


def _checked(agent: Agent, previous_agent: Agent | None, now: float) -> Agent:
    """Trusts an agent again whose own check has become good."""
    return (
        trusted_again(agent, now)
        if previous_agent is not None and previous_agent.problem and not agent.problem
        else agent
    )


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
