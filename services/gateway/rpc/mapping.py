"""Maps the gateway's own records to the messages of gateway.proto and ingest.proto, and back.

gangline.wire maps the messages of types.proto. This module decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from gangline import wire
from gangline.domain.experiment import QueueMove, ResourceChange
from gangline.domain.state import ExperimentAction
from gangline.errors import invalid
from gangline.v1 import gateway_pb2, ingest_pb2
from services.gateway.record import (
    AgentView,
    ClusterView,
    ExperimentView,
    IngestRecord,
    LogLine,
    MetricsPoint,
    ProgressPoint,
    StoredLog,
    StoredMetrics,
    TrialView,
)
from services.gateway.usecase.experiment import ExperimentChange


def records_from_proto(messages: Iterable[ingest_pb2.IngestRecord]) -> tuple[IngestRecord, ...]:
    """Reads records. Raises GanglineError `ingest.empty_record` for a record of a kind that this version does not
    know."""
    return tuple(IngestRecord(message.sequence, message.at, _content_from_proto(message)) for message in messages)


def _content_from_proto(message: ingest_pb2.IngestRecord) -> LogLine | MetricsPoint | ProgressPoint:
    kind = message.WhichOneof("record")
    if kind == "log":
        line = message.log
        return LogLine(line.rank if line.HasField("rank") else None, line.agent_id, line.stream, line.text)
    if kind == "metrics":
        point = message.metrics
        return MetricsPoint(point.group, point.batches_completed, dict(point.metrics))
    if kind == "progress":
        progress = message.progress
        return ProgressPoint(progress.batches_completed, progress.batches_total, progress.samples_per_second)
    raise invalid("ingest.empty_record", f"record {message.sequence} holds no log, metrics or progress")


def changes_from_proto(message: gateway_pb2.UpdateExperimentRequest) -> list[ExperimentChange | None]:
    """Returns all changes that the message asks for; a valid one has exactly one. None: an action that this version
    does not know."""
    changes: list[ExperimentChange | None] = []
    if message.action:
        changes.append(wire.enum_member(ExperimentAction, message.action))
    if message.HasField("resources"):
        changes.append(wire.from_proto(ResourceChange, message.resources))
    if message.HasField("move"):
        changes.append(wire.from_proto(QueueMove, message.move))
    return changes


def log_to_proto(row: StoredLog) -> gateway_pb2.StoredLog:
    line = ingest_pb2.LogLine(
        rank=row.line.rank, agent_id=row.line.agent_id, stream=row.line.stream, text=row.line.text
    )
    return gateway_pb2.StoredLog(id=row.id, trial_id=row.trial_id, at=row.at, line=line)


def metrics_to_proto(row: StoredMetrics) -> gateway_pb2.StoredMetrics:
    return gateway_pb2.StoredMetrics(id=row.id, trial_id=row.trial_id, at=row.at, point=_point_to_proto(row.point))


def experiment_view_to_proto(view: ExperimentView) -> gateway_pb2.ExperimentView:
    return gateway_pb2.ExperimentView(
        experiment=wire.to_proto(view.experiment),
        trials=[_trial_view_to_proto(trial) for trial in view.trials],
        search=wire.to_proto(view.search) if view.search else None,
        reason=wire.to_proto(view.reason) if view.reason else None,
    )


def agent_view_to_proto(view: AgentView) -> gateway_pb2.AgentView:
    return gateway_pb2.AgentView(
        agent=wire.to_proto(view.agent), allocation_id_by_slot_id=dict(view.allocation_id_by_slot_id)
    )


def cluster_to_proto(view: ClusterView) -> gateway_pb2.GetClusterResponse:
    return gateway_pb2.GetClusterResponse(
        cluster=wire.to_proto(view.cluster) if view.cluster else None,
        version=view.version,
        leader=wire.to_proto(view.leader) if view.leader else None,
        services=[wire.to_proto(instance) for instance in view.services],
        num_agents=view.num_agents,
        num_slots=view.num_slots,
        num_slots_used=view.num_slots_used,
        num_pending=view.num_pending,
        etcd=gateway_pb2.EtcdHealth(
            is_available=view.etcd.is_available,
            num_members=view.etcd.num_members,
            num_answering=view.etcd.num_answering,
            problem=view.etcd.problem,
            since=view.etcd.since,
        ),
    )


def _trial_view_to_proto(view: TrialView) -> gateway_pb2.TrialView:
    newest = view.newest
    return gateway_pb2.TrialView(
        trial=wire.to_proto(view.trial),
        allocation=wire.to_proto(view.allocation) if view.allocation else None,
        reason=wire.to_proto(view.reason) if view.reason else None,
        progress=_progress_to_proto(newest.progress) if newest.progress else None,
        training=_point_to_proto(newest.training) if newest.training else None,
        validation=_point_to_proto(newest.validation) if newest.validation else None,
    )


def _progress_to_proto(point: ProgressPoint) -> ingest_pb2.ProgressPoint:
    return ingest_pb2.ProgressPoint(
        batches_completed=point.batches_completed,
        batches_total=point.batches_total,
        samples_per_second=point.samples_per_second,
    )


def _point_to_proto(point: MetricsPoint) -> ingest_pb2.MetricsPoint:
    return ingest_pb2.MetricsPoint(
        group=point.group, batches_completed=point.batches_completed, metrics=dict(point.metrics)
    )
