"""Builds the requests that change experiments, agents and slots, and the filter of log lines; reads log lines.

It sends nothing by itself; the calls do. A request id identifies one change that a user wants once, however often it is
sent.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime

from gangline.client.record import LogEntry
from gangline.domain.experiment import QueueMove, ResourceChange, RetentionChange, TextChange
from gangline.domain.history import LogFilter, check_filter, levels_from, parse_level
from gangline.domain.state import Availability, ExperimentAction, LogLevel
from gangline.errors import invalid
from gangline.protocol.wire import enum_member, enum_number, to_proto
from gangline.v1 import gateway_pb2 as pb


def new_request_id() -> str:
    """Returns an id for one change that a user wants once, however often it is sent."""
    return str(uuid.uuid4())


def of_state(experiment_id: int, action: ExperimentAction, request_id: str | None) -> pb.UpdateExperimentRequest:
    request = _update(experiment_id, request_id)
    request.action = enum_number(action)  # type: ignore[assignment]  # an enum's number is what protobuf takes
    return request


def of_resources(experiment_id: int, change: ResourceChange, request_id: str | None) -> pb.UpdateExperimentRequest:
    """Builds a change of resources. Raises GanglineError `resources.*`."""
    from gangline.config import check_resource_change  # noqa: PLC0415 - loads pydantic, which readers do not need

    check_resource_change(change)
    request = _update(experiment_id, request_id)
    request.resources.CopyFrom(to_proto(change))
    return request


def of_texts(experiment_id: int, change: TextChange, request_id: str | None) -> pb.UpdateExperimentRequest:
    """Builds a change of texts and labels. Raises GanglineError `texts.*`."""
    from gangline.config.layer.experiment_text import check_text_change  # noqa: PLC0415 - loads pydantic

    check_text_change(change)
    request = _update(experiment_id, request_id)
    request.texts.CopyFrom(to_proto(change))
    return request


def of_retention(experiment_id: int, change: RetentionChange, request_id: str | None) -> pb.UpdateExperimentRequest:
    """Builds a change of what an experiment keeps. Raises GanglineError `retention.*`."""
    _check_retention(change)
    request = _update(experiment_id, request_id)
    request.retention.CopyFrom(to_proto(change))
    return request


def of_retention_preview(experiment_id: int, change: RetentionChange) -> pb.PreviewRetentionRequest:
    """Raises GanglineError `retention.*`."""
    _check_retention(change)
    return pb.PreviewRetentionRequest(experiment_id=experiment_id, retention=to_proto(change))


def _check_retention(change: RetentionChange) -> None:
    from gangline.config.layer.retention import check_retention_change  # noqa: PLC0415 - loads pydantic

    check_retention_change(change)


def of_place(
    experiment_id: int, ahead_of: int | None, behind: int | None, request_id: str | None
) -> pb.UpdateExperimentRequest:
    """Builds a move in the queue. Raises GanglineError `queue.one_place`."""
    anchor = ahead_of if behind is None else behind
    if anchor is None or (ahead_of is not None and behind is not None):
        raise invalid(
            "queue.one_place",
            "name one experiment: the one that it is to be ahead of, or the one that it is to be behind",
        )
    request = _update(experiment_id, request_id)
    request.move.CopyFrom(to_proto(QueueMove(anchor, is_behind=behind is not None)))
    return request


def of_agent(
    agent_id: str, slot_ids: Sequence[str], availability: Availability, request_id: str | None
) -> pb.UpdateAgentRequest:
    """Builds a change of an agent's or its slots' availability. slot_ids: empty for the agent itself."""
    request = pb.UpdateAgentRequest(request_id=request_id or new_request_id(), agent_id=agent_id, slot_ids=slot_ids)
    request.availability = enum_number(availability)  # type: ignore[assignment]  # as above
    return request


def _update(experiment_id: int, request_id: str | None) -> pb.UpdateExperimentRequest:
    return pb.UpdateExperimentRequest(request_id=request_id or new_request_id(), experiment_id=experiment_id)


def log_entry(stored: pb.StoredLog) -> LogEntry:
    """Maps the message field by field: the general mapping takes several times as long, and a log may be very long."""
    line = stored.line
    rank = line.rank if line.HasField("rank") else None
    level = enum_member(LogLevel, line.level) or LogLevel.INFO
    return LogEntry(stored.id, stored.trial_id, stored.at, line.text, rank, line.agent_id, line.stream, level)


def log_filter(
    *,
    since: datetime | float | None,
    until: datetime | float | None,
    ranks: Sequence[int] | int,
    level: LogLevel | str,
    agents: Sequence[str] | str,
    pattern: str,
) -> LogFilter:
    """Returns the checked filter. Raises GanglineError `logs.*`."""
    levels = levels_from(parse_level(str(level))) if level else ()
    agents = (agents,) if isinstance(agents, str) else agents
    ranks = (ranks,) if isinstance(ranks, int) else ranks
    wanted = LogFilter(_seconds("since", since), _seconds("until", until), tuple(ranks), levels, tuple(agents), pattern)
    check_filter(wanted)
    return wanted


def _seconds(name: str, time: datetime | float | None) -> float | None:
    """Returns Unix seconds. A time without a zone is one of this machine's zone."""
    if time is None:
        return None
    try:
        return time.timestamp() if isinstance(time, datetime) else float(time)
    except (ValueError, OverflowError, OSError, TypeError):
        raise invalid("logs.time", f"{name} is {str(time)[:50]!r}; give a datetime or seconds since 1970") from None
