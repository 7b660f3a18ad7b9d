"""PURE: changes of resources and of places in the queue, as Determined's client sends them: null for what stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gangline.domain.experiment import QueueMove, ResourceChange
from gangline.errors import invalid
from services.gateway.determined.call import to_number


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
