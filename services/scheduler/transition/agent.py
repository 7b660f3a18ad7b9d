"""PURE: agents join, change, are lost and come back. Their record lives until it is removed; only its state changes."""

from __future__ import annotations

from dataclasses import replace

from gangline.domain.allocation import Allocation
from gangline.domain.resource import Agent
from gangline.domain.state import AgentState
from services.scheduler.records import Change, Draft, Records
from services.scheduler.transition.exit import unended_agents


def registered(records: Records, agent: Agent, now: float) -> Change:
    """An agent has said hello with what it has now. Nothing is written when that is known already."""
    known = records.find(Agent, agent.id)
    registered_at = known.registered_at if known else now
    draft = Draft(records)
    draft.put(replace(agent, state=AgentState.ALIVE, registered_at=registered_at, lost_at=0.0))
    return draft.change


def lost(records: Records, agent_id: str, now: float) -> Change:
    """Its lease has run out. What ran there ends by `member_exited` with AGENT_LOST, one allocation at a time."""
    agent = records.find(Agent, agent_id)
    if agent is None or agent.state is AgentState.LOST:
        return Change()
    return Change(puts=(replace(agent, state=AgentState.LOST, lost_at=now),))


def unended_on(records: Records, agent_id: str) -> list[Allocation]:
    """Allocations that still wait for the end of their member on this agent."""
    return [found for found in records.allocations_on(agent_id) if agent_id in unended_agents(found)]
