"""The cluster as a whole: its size and use, its services, its health, and the targets of Prometheus."""

from __future__ import annotations

import gangline
from gangline.domain.resource import Cluster
from gangline.domain.state import AgentState
from gangline.domain.view import ClusterView
from services.common.etcd import HealthWatch
from services.common.server import Principal
from services.gateway.leader.leader_client import no_leader
from services.gateway.mirror.auth import check_user
from services.gateway.mirror.discovery import Target, list_targets
from services.gateway.mirror.ingest_record import Health
from services.gateway.mirror.mirror import Watched

# Shown before a scheduler has led for the first time.
NOT_FOUNDED = Cluster(0, "", 0.0)


class Clusters:
    def __init__(self, mirror: Watched, etcd: HealthWatch) -> None:
        self._mirror = mirror
        self._etcd = etcd

    def describe(self, principal: Principal) -> ClusterView:
        check_user(principal)
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

    def identify(self) -> str:
        """Returns the cluster's id, which anyone may know; empty until a scheduler has led for the first time."""
        cluster = self._mirror.state.cluster
        return cluster.id if cluster is not None else ""

    def health(self) -> Health:
        """Returns the health from memory, so it answers at once even if etcd or the leader is away."""
        state, etcd = self._mirror.state, self._etcd.health
        has_leader = state.leader is not None
        # A missing leader often follows from etcd's problem, so etcd's is named first.
        problem = etcd.problem or ("" if has_leader else no_leader().message)
        return Health(status="ok", has_leader=has_leader, revision=state.revision, etcd=etcd, problem=problem)

    def list_targets(self) -> list[Target]:
        """Returns the targets of Prometheus, which has no token: addresses and ids only."""
        state = self._mirror.state
        return list_targets(state.instances.all(), state.agents.all(), state.allocations.all())
