"""Reads the messages that need more than the generic map: a change of an experiment, and the operations of a custom
search.

gangline.protocol.wire maps all other messages. This module decides nothing.
"""

from __future__ import annotations

from gangline.domain.experiment import QueueMove, ResourceChange, RetentionChange, TextChange
from gangline.domain.search import SearchOperation
from gangline.domain.state import ExperimentAction, SearchOperationKind
from gangline.errors import invalid
from gangline.protocol import wire
from gangline.v1 import gateway_pb2
from services.gateway.usecase.experiment import ExperimentChange


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
