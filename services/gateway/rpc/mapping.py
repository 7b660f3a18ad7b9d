"""Reads the messages that need more than the generic map: a delivered record of one of three kinds, a change of an
experiment, and the operations of a custom search.

gangline.protocol.wire maps all other messages. This module decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from gangline.domain.experiment import QueueMove, ResourceChange, RetentionChange, TextChange
from gangline.domain.history import LogLine, MetricsPoint, ProgressPoint
from gangline.domain.search import SearchOperation
from gangline.domain.state import ExperimentAction, SearchOperationKind
from gangline.errors import invalid
from gangline.protocol import wire
from gangline.v1 import gateway_pb2, ingest_pb2
from services.gateway.mirror.ingest_record import IngestRecord
from services.gateway.usecase.experiment import ExperimentChange


def records_from_proto(messages: Iterable[ingest_pb2.IngestRecord]) -> tuple[IngestRecord, ...]:
    """Reads records. Raises GanglineError `ingest.empty_record` for a record of a kind that this version does not
    know."""
    return tuple(IngestRecord(message.sequence, message.at, _content_from_proto(message)) for message in messages)


def _content_from_proto(message: ingest_pb2.IngestRecord) -> LogLine | MetricsPoint | ProgressPoint:
    match message.WhichOneof("record"):
        case "log":
            return wire.from_proto(LogLine, message.log)
        case "metrics":
            return wire.from_proto(MetricsPoint, message.metrics)
        case "progress":
            return wire.from_proto(ProgressPoint, message.progress)
    raise invalid("ingest.empty_record", f"record {message.sequence} holds no log, metrics or progress")


def operations_from_proto(message: gateway_pb2.PostSearchOperationsRequest) -> list[SearchOperation]:
    """Raises GanglineError `search.operation` for a kind that this version does not know."""
    if any(wire.enum_member(SearchOperationKind, operation.kind) is None for operation in message.operations):
        raise invalid(
            "search.operation", "an operation is none of those that this version knows: create, close, shut down"
        )
    return [wire.from_proto(SearchOperation, operation) for operation in message.operations]


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
    if message.HasField("texts"):
        changes.append(wire.from_proto(TextChange, message.texts))
    if message.HasField("retention"):
        changes.append(wire.from_proto(RetentionChange, message.retention))
    return changes
