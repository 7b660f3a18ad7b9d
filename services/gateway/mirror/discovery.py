"""PURE: the targets of Prometheus, in the form of its HTTP service discovery: every service, agent and trial runner.

The labels are the ones of the dashboards in deploy/: `service` is a closed set, the ids name the source of the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gangline.domain.allocation import Allocation, Member
from gangline.domain.resource import Agent, ServiceInstance
from gangline.domain.state import AgentState, State
from services.common.metrics_address import runner_metrics_address


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """Describes one address to scrape, "host:port", and the labels of its series."""

    address: str
    labels: dict[str, str]
    is_of_http_port: bool = False  # whether it is the HTTP server of a gateway, which may use TLS


def list_targets(
    instances: Iterable[ServiceInstance], agents: Iterable[Agent], allocations: Iterable[Allocation]
) -> list[ScrapeTarget]:
    """Returns the targets in a stable order. Services without metrics are left out."""
    agent_by_id = {agent.id: agent for agent in agents}
    targets = [*_of_instances(instances), *_of_agents(agent_by_id.values())]
    taken = {target.address for target in targets}
    for target in _of_runners(sorted(allocations, key=_order), agent_by_id):
        # A trial can report in its runner's name, and so could name the address of another target.
        if target.address not in taken:
            taken.add(target.address)
            targets.append(target)
    return sorted((target for target in targets if target.address), key=lambda target: sorted(target.labels.items()))


def _order(allocation: Allocation) -> tuple[float, str]:
    return allocation.timeline.placed_at, allocation.id


def _of_instances(instances: Iterable[ServiceInstance]) -> Iterator[ScrapeTarget]:
    for instance in instances:
        # A gateway serves its metrics on its HTTP port. A restarted service has the same address and another id.
        address = instance.metrics_address or instance.http_address
        yield ScrapeTarget(address, {"service": instance.kind, "instance_id": address}, not instance.metrics_address)


def _of_agents(agents: Iterable[Agent]) -> Iterator[ScrapeTarget]:
    for agent in agents:
        if agent.state is AgentState.ALIVE:
            yield ScrapeTarget(
                agent.metrics_address,
                {"service": "agent", "instance_id": agent.id, "agent_id": agent.id, "pool": agent.pool},
            )


def _of_runners(allocations: Iterable[Allocation], agent_by_id: Mapping[str, Agent]) -> Iterator[ScrapeTarget]:
    """Yields the runners' targets. The record may come from a version that stored the reported host, so only its port
    counts here as well."""
    for allocation in allocations:
        if allocation.state is not State.TERMINAL:
            for member in allocation.members:
                address = runner_metrics_address(agent_by_id.get(member.agent_id), member.metrics_address)
                yield ScrapeTarget(address, _runner_labels(allocation, member))


def _runner_labels(allocation: Allocation, member: Member) -> dict[str, str]:
    return {
        "service": "trial_runner",
        "instance_id": f"{allocation.id}/{member.node_rank}",
        "agent_id": member.agent_id,
        "pool": allocation.pool,
        "experiment_id": str(allocation.experiment_id),
        "trial_id": allocation.trial_id,
        "allocation_id": allocation.id,
    }
