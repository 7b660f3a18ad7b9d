"""PURE: values in Determined's forms: numbers, states, the storage of checkpoints, changes of resources."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from gangline.domain.experiment import QueueMove, ResourceChange
from gangline.domain.history import MetricsPoint
from gangline.domain.state import CheckpointState, ExitKind, Outcome, State
from gangline.errors import invalid

Json = dict[str, Any]
# Larger numbers are no ids, and no database takes them.
_INT64_MAX = 2**63 - 1
_STATES = {
    State.QUEUED: "STATE_QUEUED",
    State.STARTING: "STATE_STARTING",
    State.RUNNING: "STATE_RUNNING",
    State.PAUSED: "STATE_PAUSED",
    State.STOPPING: "STATE_STOPPING_CANCELED",
}
_OUTCOMES = {
    Outcome.COMPLETED: "STATE_COMPLETED",
    Outcome.CANCELED: "STATE_CANCELED",
    Outcome.FAILED: "STATE_ERROR",
}
_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_STATE_BY_NAME = {name: state for state, name in _STATES.items()}
_OUTCOME_BY_NAME = {name: outcome for outcome, name in _OUTCOMES.items()}
_CHECKPOINT_STATES = {CheckpointState.COMPLETED: "STATE_COMPLETED", CheckpointState.DELETING: "STATE_DELETED"}


def to_number(value: object, name: str) -> int:
    """Reads an id or a count, as a number or a text. Raises GanglineError `request.id`."""
    text = str(value)
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) < 20 and abs(int(text)) <= _INT64_MAX:
        return int(text)
    raise invalid("request.id", f"{name} is {text[:40]!r}, which is no whole number of 64 bits")


def pagination(offset: int, limit: int, num_shown: int, total: int) -> Json:
    start = min(offset, total)
    return {"offset": offset, "limit": limit, "startIndex": start, "endIndex": start + num_shown, "total": total}


def metrics_json(metrics: Mapping[str, float]) -> Json:
    """Returns metrics in JSON, which has no numbers for NaN and the infinities; Determined writes their names."""
    return {name: value if math.isfinite(value) else _NAMES[str(value)] for name, value in metrics.items()}


def report_json(point: MetricsPoint) -> Json:
    """Returns all metrics of a report, those that are no numbers too."""
    return {**_named(point.values), **metrics_json(point.metrics)}


def _named(value: Any) -> Any:
    """Returns a value with the names of NaN and the infinities in their places. Its depth is limited at intake."""
    if isinstance(value, dict):
        return {name: _named(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_named(entry) for entry in value]
    return _NAMES[str(value)] if isinstance(value, float) and not math.isfinite(value) else value


def load(text: str) -> Any:
    """Returns the JSON of a record."""
    return json.loads(text or "{}")


def state_name(state: State, outcome: Outcome | None, stop_kind: ExitKind | None = None) -> str:
    if state is State.TERMINAL:
        return _OUTCOMES[outcome or Outcome.COMPLETED]
    if state is State.STOPPING and stop_kind is ExitKind.KILLED:
        return "STATE_STOPPING_KILLED"
    return _STATES[state]


def checkpoint_state_name(state: CheckpointState) -> str:
    return _CHECKPOINT_STATES[state]


def states_named(names: list[str]) -> tuple[tuple[State, ...], tuple[Outcome, ...]]:
    """Returns the states and outcomes that Determined's names select; STATE_ACTIVE stands for all of them that wait or
    run. A name that no experiment here ever has selects none."""
    states = [_STATE_BY_NAME[name] for name in names if name in _STATE_BY_NAME]
    if "STATE_ACTIVE" in names:
        states += [State.QUEUED, State.STARTING, State.RUNNING]
    return tuple(dict.fromkeys(states)), tuple(_OUTCOME_BY_NAME[name] for name in names if name in _OUTCOME_BY_NAME)


def with_storage(config: Json, folder: str = "") -> Json:
    """Returns the configuration with a storage of Determined's kinds.

    folder: of checkpoints, where it is a plain one. A client that sees it copies from there; any other one asks us for
    the files.
    """
    storage = {**(config.get("checkpoint_storage") or {}), "type": "directory", "container_path": folder or "/"}
    return {**config, "checkpoint_storage": storage}


def read_resources(values: Mapping[str, Any]) -> ResourceChange:
    """Reads priority, weight and maxSlots. Raises GanglineError `request.*`."""
    priority, max_slots = values.get("priority"), values.get("maxSlots")
    return ResourceChange(
        to_number(priority, "priority") if priority is not None else None,
        _to_float(values.get("weight")),
        to_number(max_slots, "maxSlots") if max_slots is not None else None,
    )


def read_queue_control(values: Mapping[str, Any]) -> tuple[int, ResourceChange | QueueMove]:
    """Reads v1QueueControl: the experiment and its change. Raises GanglineError `request.*`."""
    experiment_id = to_number(values.get("jobId"), "jobId")
    if values.get("resourcePool"):
        raise invalid(
            "request.lacking",
            "an experiment stays in its pool; create it again in the other one: "
            f"gangline experiment fork {experiment_id} --config resources.resource_pool=POOL",
        )
    for key, is_behind in (("aheadOf", False), ("behindOf", True)):
        if values.get(key):
            return experiment_id, QueueMove(to_number(values[key], key), is_behind=is_behind)
    return experiment_id, read_resources(values)


def _to_float(value: Any) -> float | None:
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise invalid("request.invalid", f"weight is {str(value)[:40]!r}, which is no number") from error
