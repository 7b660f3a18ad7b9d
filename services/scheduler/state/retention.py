"""PURE: decides which checkpoints of an experiment are no longer needed.

Only the scheduler decides it, and only from its recorded state: a checkpoint from which a running or waiting trial
resumes is never among them. A checkpoint that is not among the best or the latest now never will be again, as only more
are made; so it may be deleted while the experiment still runs.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gangline.domain.document import read_document
from gangline.domain.experiment import VALIDATION_METRICS, Checkpoint
from gangline.domain.settled.record import Settled


@dataclass(frozen=True, slots=True)
class Retention:
    """Holds how many checkpoints to keep: the best of the experiment, the best and the latest of each trial."""

    experiment_best: int
    trial_best: int
    trial_latest: int
    metric: str  # ranks the checkpoints; a checkpoint without validation metrics is never among the best
    smaller_is_better: bool


def retention_of(settled: Settled) -> Retention:
    storage, searcher = settled.checkpoint_storage, settled.searcher
    return Retention(
        experiment_best=storage.save_experiment_best,
        trial_best=storage.save_trial_best,
        trial_latest=storage.save_trial_latest,
        metric=searcher.metric,
        smaller_is_better=searcher.smaller_is_better,
    )


def find_superfluous(
    checkpoints: Iterable[Checkpoint], retention: Retention, needed: Collection[str] = ()
) -> list[Checkpoint]:
    """Returns the checkpoints to delete, in the order given. checkpoints: all of the experiment, or of one trial where
    experiment_best is 0. needed: the ids from which a trial resumes.
    """
    all_checkpoints = list(checkpoints)
    by_trial: dict[str, list[Checkpoint]] = {}
    for checkpoint in all_checkpoints:
        by_trial.setdefault(checkpoint.trial_id, []).append(checkpoint)
    kept = {*needed, *_best(all_checkpoints, retention, retention.experiment_best)}
    for own in by_trial.values():
        kept |= {*_best(own, retention, retention.trial_best), *_latest(own, retention.trial_latest)}
    return [checkpoint for checkpoint in all_checkpoints if checkpoint.id not in kept]


def _best(checkpoints: Sequence[Checkpoint], retention: Retention, count: int) -> list[str]:
    """Returns the ids of the best checkpoints. Among equally good ones the earlier ranks first, because it has cost
    less training.
    """
    if not count:
        return []
    sign = 1 if retention.smaller_is_better else -1
    ranked = sorted(
        (sign * value, checkpoint.batches_completed, checkpoint.id)
        for checkpoint in checkpoints
        if not checkpoint.is_past_length
        and (value := _value_of(checkpoint.metadata_json, retention.metric)) is not None
    )
    return [storage_id for _, _, storage_id in ranked[:count]]


def _latest(checkpoints: Sequence[Checkpoint], count: int) -> list[str]:
    ranked = sorted(
        checkpoints,
        key=lambda checkpoint: (checkpoint.batches_completed, checkpoint.created_at, checkpoint.id),
        reverse=True,
    )
    return [checkpoint.id for checkpoint in ranked[:count]]


# Cached, because each new checkpoint causes all checkpoints beside it to be ranked again.
@lru_cache(maxsize=1 << 14)
def _value_of(metadata_json: str, metric: str) -> float | None:
    metadata = read_document(metadata_json)
    metrics = metadata.get(VALIDATION_METRICS) if isinstance(metadata, dict) else None
    value = metrics.get(metric) if isinstance(metrics, dict) else None
    # Compared, because a whole number may be too large to be made a float.
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        return None
    return float(value)
