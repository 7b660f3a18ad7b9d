"""Maps the gateway's view messages to the records of gangline.client.record. Called by the session alone."""

from __future__ import annotations

from typing import Any, TypeVar

from gangline.client.record import (
    AgentView,
    ClusterView,
    EtcdHealth,
    ExperimentView,
    LogEntry,
    Metrics,
    MetricsEntry,
    Progress,
    TrialView,
)
from gangline.domain.allocation import Allocation, Reason
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.resource import Agent, Cluster, ServiceInstance
from gangline.domain.search import Search
from gangline.v1 import gateway_pb2, ingest_pb2
from gangline.wire import from_proto

T = TypeVar("T")


def experiment_view(message: gateway_pb2.ExperimentView) -> ExperimentView:
    return ExperimentView(
        from_proto(Experiment, message.experiment),
        tuple(trial_view(trial) for trial in message.trials),
        _optional(Search, message, "search"),
        _optional(Reason, message, "reason"),
    )


def trial_view(message: gateway_pb2.TrialView) -> TrialView:
    return TrialView(
        trial=from_proto(Trial, message.trial),
        allocation=_optional(Allocation, message, "allocation"),
        reason=_optional(Reason, message, "reason"),
        progress=progress(message.progress) if message.HasField("progress") else None,
        training=metrics(message.training) if message.HasField("training") else None,
        validation=metrics(message.validation) if message.HasField("validation") else None,
    )


def progress(message: ingest_pb2.ProgressPoint) -> Progress:
    return Progress(message.batches_completed, message.batches_total, message.samples_per_second)


def metrics(message: ingest_pb2.MetricsPoint) -> Metrics:
    return Metrics(message.group, message.batches_completed, dict(message.metrics))


def log_entry(message: gateway_pb2.StoredLog) -> LogEntry:
    line = message.line
    rank = line.rank if line.HasField("rank") else None
    return LogEntry(message.id, message.trial_id, message.at, line.text, rank, line.agent_id, line.stream)


def metrics_entry(message: gateway_pb2.StoredMetrics) -> MetricsEntry:
    return MetricsEntry(message.id, message.trial_id, message.at, metrics(message.point))


def agent_view(message: gateway_pb2.AgentView) -> AgentView:
    return AgentView(from_proto(Agent, message.agent), dict(message.allocation_id_by_slot_id))


def cluster_view(message: gateway_pb2.GetClusterResponse) -> ClusterView:
    return ClusterView(
        cluster=from_proto(Cluster, message.cluster),
        version=message.version,
        leader=_optional(ServiceInstance, message, "leader"),
        services=tuple(from_proto(ServiceInstance, service) for service in message.services),
        num_agents=message.num_agents,
        num_slots=message.num_slots,
        num_slots_used=message.num_slots_used,
        num_pending=message.num_pending,
        etcd=etcd_health(message.etcd) if message.HasField("etcd") else None,
    )


def etcd_health(message: gateway_pb2.EtcdHealth) -> EtcdHealth:
    return EtcdHealth(message.is_available, message.num_members, message.num_answering, message.problem, message.since)


def _optional(record_type: type[T], message: Any, name: str) -> T | None:
    return from_proto(record_type, getattr(message, name)) if message.HasField(name) else None
