"""Sessions and gatherings of a term that is over."""

from __future__ import annotations

import pytest

from gangline.domain.resource import Agent
from gangline.errors import GanglineError, unavailable
from services.scheduler.agents.agent_session import AgentSession, Sessions
from services.scheduler.rendezvous.coordinator import RendezvousCoordinator

_OVER = unavailable("scheduler.deposed", "this scheduler has stopped leading")


async def test_agent_that_is_admitted_behind_the_end_of_a_term_is_sent_away() -> None:
    """Its stream would answer heartbeats for ever, and the next term of the same scheduler would not know it."""
    sessions = Sessions()
    sessions.close_all(_OVER)
    session = AgentSession("a1", "host")
    sessions.add(session)
    with pytest.raises(GanglineError, match="stopped leading"):
        await anext(session.outgoing())
    assert sessions.find("a1") is None


async def test_runner_that_comes_behind_the_end_of_a_term_is_sent_away() -> None:
    coordinator = RendezvousCoordinator(60.0, None)
    coordinator.close_all(_OVER)
    with pytest.raises(GanglineError, match="stopped leading"):
        coordinator.attend("1.1.1", [Agent("a1"), Agent("a2")], 0, 4000)
