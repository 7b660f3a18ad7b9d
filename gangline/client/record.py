"""PURE: the client's records beside those of gangline.domain: views that the gateway assembles.

They match the messages of gateway.proto and ingest.proto field by field; gangline.client.view maps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gangline.domain.allocation import Allocation, Reason
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.resource import Agent, Cluster, ServiceInstance
from gangline.domain.search import Search


@dataclass(frozen=True, slots=True)
class Progress:
    batches_completed: int
    batches_total: int
    samples_per_second: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """group: "training", "validation", or any other name under which a trial reports."""

    group: str
    batches_completed: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrialView:
    """allocation: the live one. reason: why it waits. Both are None where there is none."""

    trial: Trial
    allocation: Allocation | None = None
    reason: Reason | None = None
    progress: Progress | None = None
    training: Metrics | None = None
    validation: Metrics | None = None


@dataclass(frozen=True, slots=True)
class ExperimentView:
    """search: None for experiments of older versions. reason: why no further trial starts, None when there is none."""

    experiment: Experiment
    trials: tuple[TrialView, ...] = ()
    search: Search | None = None
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """warnings: about settings that are not carried out as written, from the client and from the cluster."""

    experiment: Experiment
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogEntry:
    """id grows within an experiment. rank is None for lines of the trial runner. stream: stdout, stderr or runner."""

    id: int
    trial_id: str
    at: float
    text: str
    rank: int | None = None
    agent_id: str = ""
    stream: str = "stdout"


@dataclass(frozen=True, slots=True)
class MetricsEntry:
    id: int
    trial_id: str
    at: float
    point: Metrics


@dataclass(frozen=True, slots=True)
class AgentView:
    """allocation_id_by_slot_id: free slots are absent."""

    agent: Agent
    allocation_id_by_slot_id: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EtcdHealth:
    """num_members: of the endpoints that the gateway knows.
    problem: one sentence while etcd is not available.
    since: when the present state began; 0 when it has lasted since the gateway started."""

    is_available: bool
    num_members: int
    num_answering: int
    problem: str = ""
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """leader: None while no scheduler leads. etcd: None from gateways of older versions."""

    cluster: Cluster
    version: str
    leader: ServiceInstance | None
    services: tuple[ServiceInstance, ...]
    num_agents: int
    num_slots: int
    num_slots_used: int
    num_pending: int
    etcd: EtcdHealth | None = None
