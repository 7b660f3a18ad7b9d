"""PURE: the gateway's records beside the domain: history (logs, metrics, progress) and the joined views of it.

The fields mirror gateway.proto and ingest.proto. Use cases return these records; rpc/mapping.py maps them to messages
and http/model.py to JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gangline.domain.allocation import Allocation, Reason
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.resource import Agent, Cluster, ServiceInstance
from gangline.domain.search import Search
from services.common.etcd.record import EtcdHealth


@dataclass(frozen=True, slots=True)
class LogLine:
    """Holds a line of a log. rank: None for lines of the trial runner itself. stream: "stdout", "stderr" or
    "runner"."""

    rank: int | None
    agent_id: str
    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class MetricsPoint:
    """Holds metrics of one batch. group: "training", "validation", or any other name that a trial reports under."""

    group: str
    batches_completed: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """Holds a report of progress. batches_total: 0 when unknown."""

    batches_completed: int
    batches_total: int
    samples_per_second: float


@dataclass(frozen=True, slots=True)
class IngestRecord:
    """Holds one record of a spool. sequence: counts from 1 within its spool."""

    sequence: int
    at: float
    content: LogLine | MetricsPoint | ProgressPoint


@dataclass(frozen=True, slots=True)
class IngestBatch:
    """Holds records of one spool in the order of their sequence numbers. last_sequence: everything up to it is settled
    with this batch, including records that were left out; 0 for the last record's number."""

    spool_id: str
    experiment_id: int
    trial_id: str
    records: tuple[IngestRecord, ...]
    last_sequence: int = 0


@dataclass(frozen=True, slots=True)
class StoredLog:
    """Holds a stored log line. id: grows with the order in which rows became visible."""

    id: int
    trial_id: str
    at: float
    line: LogLine


@dataclass(frozen=True, slots=True)
class StoredMetrics:
    id: int
    trial_id: str
    at: float
    point: MetricsPoint


@dataclass(frozen=True, slots=True)
class Scope:
    """Names the history that a caller asks for. trial_id: empty for all trials. group: empty for all metrics."""

    experiment_id: int
    trial_id: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Newest:
    """Holds the newest history of one trial."""

    progress: ProgressPoint | None = None
    training: MetricsPoint | None = None
    validation: MetricsPoint | None = None


@dataclass(frozen=True, slots=True)
class TrialView:
    """Joins a trial with what the gateway knows of it. allocation: the live one. reason: why it waits; None unless it
    is queued and a scheduler leads."""

    trial: Trial
    allocation: Allocation | None
    reason: Reason | None
    newest: Newest


@dataclass(frozen=True, slots=True)
class ExperimentView:
    """Joins an experiment with its trials. search: None for experiments of older versions. reason: why no further trial
    starts; None when there is none."""

    experiment: Experiment
    trials: tuple[TrialView, ...]
    search: Search | None = None
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class AgentView:
    """Joins an agent with its allocations. allocation_id_by_slot_id: free slots are absent."""

    agent: Agent
    allocation_id_by_slot_id: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Describes the cluster. leader: None when no scheduler leads."""

    cluster: Cluster | None
    version: str
    leader: ServiceInstance | None
    services: tuple[ServiceInstance, ...]
    num_agents: int
    num_slots: int
    num_slots_used: int
    num_pending: int
    etcd: EtcdHealth


@dataclass(frozen=True, slots=True)
class Health:
    """Describes the gateway's health. revision: the newest one of etcd that is mirrored. problem: why nothing can be
    changed now; empty when it can."""

    status: str
    has_leader: bool
    revision: int
    etcd: EtcdHealth
    problem: str
