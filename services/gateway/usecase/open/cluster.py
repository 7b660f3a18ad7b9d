"""What anybody may know of the cluster: its id, its health, and the targets of Prometheus."""

from __future__ import annotations

from services.common.etcd import HealthWatch
from services.gateway.leader.leader_client import no_leader
from services.gateway.mirror.discovery import ScrapeTarget, list_targets
from services.gateway.mirror.ingest_record import Health
from services.gateway.mirror.mirror import Watched


class PublicCluster:
    def __init__(self, mirror: Watched, etcd: HealthWatch) -> None:
        self._mirror = mirror
        self._etcd = etcd

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

    def list_targets(self) -> list[ScrapeTarget]:
        """Returns the targets of Prometheus, which has no token: addresses and ids only."""
        state = self._mirror.state
        return list_targets(state.instances.all(), state.agents.all(), state.allocations.all())
