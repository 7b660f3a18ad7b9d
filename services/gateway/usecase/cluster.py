"""The cluster as a whole: its size and use, and its services."""

from __future__ import annotations

import gangline
from gangline.domain.resource import Cluster
from gangline.domain.state import AgentState
from gangline.domain.view import ClusterView
from services.common.etcd import HealthWatch
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched

# Shown before a scheduler has led for the first time.
NOT_FOUNDED = Cluster(0, "", 0.0)


class Clusters:
    def __init__(self, caller: Caller, mirror: Watched, etcd: HealthWatch) -> None:
        self._caller = caller
        self._mirror = mirror
        self._etcd = etcd

    def describe(self) -> ClusterView:
        state = self._mirror.state
        alive = [agent for agent in state.agents.all() if agent.state is AgentState.ALIVE]
        holders = state.allocation_id_by_slot_id()
        return ClusterView(
            cluster=state.cluster or NOT_FOUNDED,
            version=gangline.__version__,
            leader=state.leader,
            services=tuple(sorted(state.instances.all(), key=lambda instance: (instance.kind, instance.id))),
            num_agents=len(alive),
            num_slots=sum(len(agent.slots) for agent in alive),
            num_slots_used=sum(slot.id in holders for agent in alive for slot in agent.slots),
            num_pending=sum(not state.is_paused(request.experiment_id) for request in state.requests.all()),
            etcd=self._etcd.health,
        )
