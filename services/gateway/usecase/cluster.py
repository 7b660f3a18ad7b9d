"""What the cluster has and what it does: tasks, agents, services, and what Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Mapping

import gangline
from gangline.domain.allocation import Reason
from gangline.domain.state import AgentState, State
from gangline.errors import not_found
from services.common import keys
from services.common.server import Principal
from services.gateway.auth import check_user
from services.gateway.discovery import Target, list_targets
from services.gateway.mirror import Watched
from services.gateway.record import AgentView, ClusterView, Health, Task
from services.gateway.usecase.pending import Pending


class Clusters:
    def __init__(self, mirror: Watched, pending: Pending) -> None:
        self._mirror = mirror
        self._pending = pending

    async def list_tasks(self, principal: Principal) -> list[Task]:
        """What holds slots, oldest first; then what waits, in the order in which the planner looks at it."""
        check_user(principal)
        reasons = await self._pending.reasons() if len(self._mirror.state.requests) else {}
        return [*self._running_tasks(), *self._waiting_tasks(reasons)]

    def list_agents(self, principal: Principal) -> list[AgentView]:
        """By id."""
        check_user(principal)
        holders = self._mirror.state.allocation_id_by_slot_id()
        return [
            AgentView(agent, {slot.id: holders[slot.id] for slot in agent.slots if slot.id in holders})
            for agent in sorted(self._mirror.state.agents.all(), key=lambda agent: agent.id)
        ]

    def view_agent(self, principal: Principal, agent_id: str) -> AgentView:
        for view in self.list_agents(principal):
            if view.agent.id == agent_id:
                return view
        raise not_found("agent.unknown", f"there is no agent {agent_id}; list them with: gangline agent list")

    def describe(self, principal: Principal) -> ClusterView:
        check_user(principal)
        state = self._mirror.state
        alive = [agent for agent in state.agents.all() if agent.state is AgentState.ALIVE]
        holders = state.allocation_id_by_slot_id()
        return ClusterView(
            cluster=state.cluster,
            version=gangline.__version__,
            leader=state.leader,
            services=tuple(sorted(state.instances.all(), key=lambda instance: (instance.kind, instance.id))),
            num_agents=len(alive),
            num_slots=sum(len(agent.slots) for agent in alive),
            num_slots_used=sum(slot.id in holders for agent in alive for slot in agent.slots),
            num_pending=len(state.requests),
        )

    def health(self) -> Health:
        state = self._mirror.state
        return Health(status="ok", has_leader=state.leader is not None, revision=state.revision)

    def list_targets(self) -> list[Target]:
        """For Prometheus, which has no token: addresses and ids only."""
        state = self._mirror.state
        return list_targets(state.instances.all(), state.agents.all(), state.allocations.all())

    def _running_tasks(self) -> list[Task]:
        live = [
            allocation for allocation in self._mirror.state.allocations.all() if allocation.state is not State.TERMINAL
        ]
        tasks = []
        for allocation in sorted(live, key=lambda allocation: allocation.created_at):
            trial = self._mirror.state.trials.find(keys.trial(allocation.trial_id))
            if trial is not None:
                tasks.append(Task(trial, self._name_of(trial.experiment_id), allocation=allocation))
        return tasks

    def _waiting_tasks(self, reasons: Mapping[str, Reason]) -> list[Task]:
        position = {trial_id: place for place, trial_id in enumerate(reasons)}
        waiting = sorted(
            self._mirror.state.requests.all(),
            key=lambda request: (position.get(request.trial_id, len(position)), request.submitted_at),
        )
        tasks = []
        for request in waiting:
            trial = self._mirror.state.trials.find(keys.trial(request.trial_id))
            if trial is not None:
                reason = reasons.get(trial.id)
                tasks.append(Task(trial, self._name_of(trial.experiment_id), request=request, reason=reason))
        return tasks

    def _name_of(self, experiment_id: int) -> str:
        experiment = self._mirror.state.experiments.find(keys.experiment(experiment_id))
        return experiment.name if experiment else ""
