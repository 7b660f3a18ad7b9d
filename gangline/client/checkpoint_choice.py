"""PURE: chooses the best checkpoints of an experiment or a trial by a validation metric."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from gangline.domain.experiment import VALIDATION_METRICS, Checkpoint
from gangline.domain.settled.record import Settled
from gangline.domain.state import CheckpointState
from gangline.errors import invalid


def choose_order(settled: Settled, sort_by: str | None, smaller_is_better: bool | None) -> tuple[str, bool]:
    """Returns the metric by which checkpoints are compared, and whether a smaller value is better.

    settled: the experiment's configuration. None takes the searcher's metric, and the searcher's direction for that
    metric. Raises GanglineError `checkpoint.no_direction` for another metric without a direction.
    """
    own = settled.searcher.metric
    metric = sort_by or own
    if smaller_is_better is not None:
        return metric, smaller_is_better
    if metric != own:
        raise invalid(
            "checkpoint.no_direction",
            f"the direction of the metric {metric!r} is not known, because the searcher's is {own!r}; "
            "give smaller_is_better",
        )
    return metric, settled.searcher.smaller_is_better


def best_checkpoints(
    checkpoints: Iterable[Checkpoint], metric: str, *, smaller_is_better: bool, limit: int
) -> list[Checkpoint]:
    """Returns the best checkpoints, the best one first; of equal ones the older one first. Those without a finite
    value of the metric, those being deleted and those made past the trial's length do not count. Raises
    GanglineError `checkpoint.limit`."""
    if limit < 0:
        raise invalid("checkpoint.limit", f"the number of checkpoints is {limit}; give 0 or more")
    values = (
        (value, checkpoint)
        for checkpoint in checkpoints
        if checkpoint.state is CheckpointState.COMPLETED
        and not checkpoint.is_past_length
        and (value := value_of(checkpoint, metric)) is not None
    )
    sign = 1 if smaller_is_better else -1
    ordered = sorted(values, key=lambda pair: (sign * pair[0], pair[1].created_at, pair[1].id))
    return [checkpoint for _, checkpoint in ordered[:limit]]


def value_of(checkpoint: Checkpoint, metric: str) -> float | None:
    """Returns the checkpoint's value of a validation metric; None without a finite one."""
    value = metrics_of(checkpoint).get(metric)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number and value is not None else None


def metrics_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns the validation metrics of a checkpoint; none for one that was not validated."""
    metadata = json.loads(checkpoint.metadata_json or "{}")
    metrics = metadata.get(VALIDATION_METRICS) if isinstance(metadata, dict) else None
    return metrics if isinstance(metrics, dict) else {}
