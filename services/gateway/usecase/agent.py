"""The agents of the cluster: their slots, the allocations that hold these, and their availability."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gangline.domain.resource import Agent
from gangline.domain.state import Availability, State
from gangline.domain.view import AgentView
from gangline.errors import invalid, not_found
from gangline.protocol import wire
from gangline.v1 import scheduler_pb2
from services.common import keys
from services.gateway.leader.leader_client import Leader
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """The work that holds the slots of an allocation."""

    trial_id: str
    experiment_id: int
    experiment_name: str
    owner: str  # user who created the experiment
    state: State  # state of the allocation


class Agents:
    def __init__(self, caller: Caller, mirror: Watched, leader: Leader) -> None:
        self._caller = caller
        self._mirror = mirror
        self._leader = leader

    def find_all(self, agent_ids: Collection[str]) -> Sequence[AgentView]:
        """Returns those of these agents that are there."""
        return [view for view in self.list() if view.agent.id in agent_ids]

    def list(self) -> list[AgentView]:
        """Returns all agents, sorted by id."""
        holders = self._mirror.state.allocation_id_by_slot_id()
        return [
            AgentView(agent, {slot.id: holders[slot.id] for slot in agent.slots if slot.id in holders})
            for agent in sorted(self._mirror.state.agents.all(), key=lambda agent: agent.id)
        ]

    def holders(self, allocation_ids: Collection[str] | None = None) -> dict[str, SlotHolder]:
        """Returns the work behind each allocation that holds slots, by the allocation's id. allocation_ids: only
        these."""
        state = self._mirror.state
        holders: dict[str, SlotHolder] = {}
        for allocation in state.allocations.all():
            if allocation_ids is not None and allocation.id not in allocation_ids:
                continue
            experiment = state.experiments.find(keys.experiment(allocation.experiment_id))
            if allocation.state is not State.TERMINAL and experiment is not None:
                holders[allocation.id] = SlotHolder(
                    allocation.trial_id, experiment.id, experiment.name, experiment.owner, allocation.state
                )
        return holders

    def view(self, agent_id: str) -> AgentView:
        """Returns one agent. Raises GanglineError `agent.not_found`."""
        for view in self.list():
            if view.agent.id == agent_id:
                return view
        raise not_found("agent.not_found", f"there is no agent {agent_id!r}; list them with: gangline agent list")

    async def update(
        self,
        agent_id: str,
        slot_ids: Sequence[str],
        availability: Availability | None,
    ) -> Agent:
        """Enables, drains or disables the agent, or these of its slots. availability: None for a value that this
        version does not know.

        For administrators only, because it stops or delays the work of all users.
        """
        self._caller.check_admin("enable, drain or disable agents and slots")
        if availability is None:
            raise invalid("request.availability", "say whether it is to be ENABLED, DRAINING or DISABLED")
        request = scheduler_pb2.SchedulerServiceUpdateAgentRequest(agent_id=agent_id, slot_ids=slot_ids)
        request.availability = wire.enum_number(availability)  # type: ignore[assignment]  # protobuf takes the number
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.UpdateAgent, request)
        return wire.from_proto(Agent, answer.agent)
