"""Routes of agents and slots. Only administrators may change them."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter

from gangline.domain.resource import Agent
from gangline.domain.state import Availability
from services.gateway.http import model, queue_model
from services.gateway.http.admission import Cases
from services.gateway.http.answer import Answer
from services.gateway.http.route import ERRORS, Route
from services.gateway.usecase import agent
from services.gateway.usecase.bundle import UserCases

router = APIRouter(prefix="/api/v1", tags=["agents"], route_class=Route, responses=ERRORS)


class SlotHolder(Answer, record=agent.SlotHolder): ...


class AgentMap(model.AgentList):
    """Lists agents, and the work on them."""

    # work behind each allocation that holds slots, by the ids in `allocationIdBySlotId`
    holders: dict[str, SlotHolder]


@router.get("/agents")
async def list_agents(cases: Cases) -> AgentMap:
    """Lists all agents with their slots, and who holds them."""
    return AgentMap.model_validate({"agents": cases.agents.list(), "holders": cases.agents.holders()})


@router.get("/agents/{agent_id}")
async def get_agent(agent_id: str, cases: Cases) -> model.AgentView:
    return model.AgentView.model_validate(cases.agents.view(agent_id))


@router.post("/agents/{agent_id}/enable")
async def enable_agent(agent_id: str, cases: Cases) -> queue_model.AgentAnswer:
    return _agent(await _set(cases, agent_id, (), Availability.ENABLED))


@router.post("/agents/{agent_id}/disable")
async def disable_agent(
    agent_id: str, cases: Cases, body: queue_model.Disable | None = None
) -> queue_model.AgentAnswer:
    """Disables an agent: its work checkpoints and waits for other slots; with drain it continues to its end."""
    return _agent(await _set(cases, agent_id, (), _off(body)))


@router.post("/agents/{agent_id}/slots/{slot_id:path}/enable")
async def enable_slot(agent_id: str, slot_id: str, cases: Cases) -> queue_model.SlotAnswer:
    """Enables a slot. slot_id: the part after the agent's id and the slash."""
    whole_id = f"{agent_id}/{slot_id}"
    return _slot(await _set(cases, agent_id, (whole_id,), Availability.ENABLED), whole_id)


@router.post("/agents/{agent_id}/slots/{slot_id:path}/disable")
async def disable_slot(
    agent_id: str, slot_id: str, cases: Cases, body: queue_model.Disable | None = None
) -> queue_model.SlotAnswer:
    """Disables a slot, with the same options as for an agent. slot_id: the part after the agent's id and the slash."""
    whole_id = f"{agent_id}/{slot_id}"
    return _slot(await _set(cases, agent_id, (whole_id,), _off(body)), whole_id)


async def _set(cases: UserCases, agent_id: str, slot_ids: Sequence[str], availability: Availability) -> Agent:
    return await cases.agents.update(agent_id, slot_ids, availability)


def _off(body: queue_model.Disable | None) -> Availability:
    return Availability.DRAINING if body is not None and body.drain else Availability.DISABLED


def _agent(agent: Agent) -> queue_model.AgentAnswer:
    return queue_model.AgentAnswer.model_validate({"agent": agent})


def _slot(agent: Agent, slot_id: str) -> queue_model.SlotAnswer:
    slot = next(slot for slot in agent.known_slots if slot.id == slot_id)
    return queue_model.SlotAnswer.model_validate({"slot": slot})
