"""PURE: changes what an experiment keeps, in any of its states, and finds the checkpoints that a change deletes.

The configuration has the policy. A change of it marks the record for a review of the experiment's checkpoints, which
takes as many steps as it needs and survives a change of the leader. Gateways read the days of logs and metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gangline.config.layer.retention import check_retention_change, with_retention
from gangline.domain.experiment import Checkpoint, Experiment, RetentionChange
from gangline.errors import conflict
from services.scheduler.state.records import Draft, Records, StateChange, get
from services.scheduler.state.retention import retention_of
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.checkpoint import MAX_MARKED, find_unkept, marked


def change_retention(records: Records, experiment_id: int, change: RetentionChange) -> StateChange:
    """Changes what the request names; a change to the present values has no effect.

    Raises GanglineError `experiment.not_found`, `experiment.deleting`, `retention.*`.
    """
    experiment = get(records, Experiment, experiment_id)
    changed = _changed(experiment, change)
    draft = Draft(records)
    if changed is not experiment:
        draft.put(changed)
    return draft.change


def preview_retention(records: Records, experiment_id: int, change: RetentionChange) -> Sequence[Checkpoint]:
    """Returns the checkpoints that the change would delete now. Raises the errors of `change_retention`."""
    changed = _changed(get(records, Experiment, experiment_id), change)
    return find_unkept(records, records.trials_of(experiment_id), retention_of(settled_of(changed.config_json)))


def review_checkpoints(records: Records, experiment_id: int) -> StateChange:
    """Marks the next checkpoints that a changed policy does not keep. The review ends with the last of them; without a
    review nothing changes."""
    draft = Draft(records)
    experiment = records.find(Experiment, experiment_id)
    if experiment is None or not experiment.reviews_checkpoints:
        return draft.change
    unkept = find_unkept(records, records.trials_of(experiment_id), retention_of(settled_of(experiment.config_json)))
    for checkpoint in unkept[:MAX_MARKED]:
        draft.put(marked(checkpoint))
    if len(unkept) <= MAX_MARKED:
        draft.put(replace(experiment, reviews_checkpoints=False))
    return draft.change


def _changed(experiment: Experiment, change: RetentionChange) -> Experiment:
    """Returns the experiment after the change; the same object where it has these values."""
    check_retention_change(change)
    if experiment.is_deleting:
        raise conflict("experiment.deleting", f"experiment {experiment.id} is being deleted; nothing else changes it")
    config_json = with_retention(experiment.config_json, change)
    if config_json is experiment.config_json:
        return experiment
    is_reviewed = retention_of(settled_of(config_json)) != retention_of(settled_of(experiment.config_json))
    return replace(
        experiment, config_json=config_json, reviews_checkpoints=experiment.reviews_checkpoints or is_reviewed
    )
