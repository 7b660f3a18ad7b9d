"""PURE: which checkpoints stay, and how the others go.

A checkpoint that is not needed is marked: because its experiment keeps better or later ones, or because a user deletes
it. Gateways delete the files of marked checkpoints and report that; only then the record goes. The checkpoint that a
trial may continue from, the one that a live allocation has started from, and those that versions of models name are
never marked; so every unmarked checkpoint can be loaded (I6).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.id import check_num_checkpoints
from gangline.domain.registry import Model
from gangline.domain.state import CheckpointState, State
from gangline.errors import conflict, not_found
from services.scheduler.state.records import Draft, Records, StateChange, live_allocation_of
from services.scheduler.state.retention import Retention, find_superfluous, retention_of
from services.scheduler.state.settled import settled_of

# A mark takes one operation, of the 128 that etcd allows; the next transactions mark the rest.
MAX_MARKED = 32


def retire(records: Records, trial_id: str) -> StateChange:
    """Marks the next checkpoints that a trial's policy does not keep; empty when there are none."""
    draft = Draft(records)
    trial = records.find(Trial, trial_id)
    if trial is not None:
        mark_superfluous(draft, trial)
    return draft.change


def mark_superfluous(draft: Draft, trial: Trial) -> None:
    """Marks checkpoints of this trial, or of its whole experiment where trials are compared with one another."""
    experiment = draft.find(Experiment, trial.experiment_id)
    if experiment is None:
        return
    retention = retention_of(settled_of(experiment.config_json))
    trials = draft.trials_of(trial.experiment_id) if retention.experiment_best else [trial]
    for checkpoint in find_unkept(draft, trials, retention)[:MAX_MARKED]:
        draft.put(marked(checkpoint))


def find_unkept(records: Records, trials: Sequence[Trial], retention: Retention) -> list[Checkpoint]:
    """Returns the checkpoints of these trials that the policy does not keep and that no work needs. trials: all of the
    experiment where the policy compares them with one another."""
    checkpoints = [
        checkpoint
        for trial in trials
        for checkpoint in records.checkpoints_of(trial.id)
        if checkpoint.state is CheckpointState.COMPLETED
    ]
    needed = {checkpoint_id for trial in trials for checkpoint_id in needed_by(records, trial)}
    needed |= {checkpoint.id for checkpoint in checkpoints if records.experiments_beginning_from(checkpoint.id)}
    needed |= {checkpoint.id for checkpoint in checkpoints if records.versions_of_checkpoint(checkpoint.id)}
    return find_superfluous(checkpoints, retention, needed)


def abandoned(records: Records, checkpoint: Checkpoint) -> StateChange:
    """Records a checkpoint that a superseded attempt has committed, marked, only so that a gateway deletes its
    files."""
    is_ours = records.find(Trial, checkpoint.trial_id) is not None and records.find(Checkpoint, checkpoint.id) is None
    draft = Draft(records)
    if is_ours:
        draft.put(marked(checkpoint))
    return draft.change


def delete_checkpoints(records: Records, checkpoint_ids: Sequence[str], request_id: str) -> StateChange:
    """Marks the named checkpoints, all or none. A retry with the same request id changes nothing.

    Raises GanglineError `checkpoint.too_many`, `checkpoint.not_found`, `checkpoint.deleting`, `checkpoint.needed`,
    `checkpoint.registered`.
    """
    check_num_checkpoints(checkpoint_ids)
    draft = Draft(records)
    for checkpoint_id in dict.fromkeys(checkpoint_ids):
        checkpoint = records.find(Checkpoint, checkpoint_id)
        if checkpoint is None:
            raise not_found(
                "checkpoint.not_found",
                f"there is no checkpoint {checkpoint_id}; list them with: gangline checkpoint list",
            )
        if checkpoint.state is CheckpointState.DELETING and checkpoint.delete_request_id == request_id:
            continue
        _check_deletable(records, checkpoint)
        draft.put(marked(checkpoint, request_id))
    return draft.change


def import_checkpoint(records: Records, checkpoint: Checkpoint) -> StateChange:
    """Adds the record of an imported checkpoint, which belongs to no trial. Its id is a digest of its content, so a
    repeated import changes nothing.

    Raises GanglineError `checkpoint.deleting` while an earlier import of the same is being deleted.
    """
    draft = Draft(records)
    existing = records.find(Checkpoint, checkpoint.id)
    if existing is None:
        draft.put(checkpoint)
    elif existing.state is CheckpointState.DELETING:
        raise conflict(
            "checkpoint.deleting",
            f"checkpoint {checkpoint.id}, which has the same content, is being deleted; import it again when "
            "`gangline checkpoint list` has lost it",
        )
    return draft.change


def confirm_checkpoints_deleted(records: Records, checkpoint_ids: Iterable[str]) -> StateChange:
    """Removes records whose files a gateway has deleted. A checkpoint that was never marked stays, whatever the report
    says."""
    draft = Draft(records)
    for checkpoint_id in checkpoint_ids:
        checkpoint = records.find(Checkpoint, checkpoint_id)
        if checkpoint is not None and checkpoint.state is CheckpointState.DELETING:
            draft.delete(Checkpoint, checkpoint_id)
    return draft.change


def age_of(checkpoint: Checkpoint) -> tuple[int, float]:
    """Returns the sort key that orders a trial's checkpoints by age."""
    return checkpoint.batches_completed, checkpoint.created_at


def marked(checkpoint: Checkpoint, request_id: str = "") -> Checkpoint:
    """Marks a checkpoint and keeps only what a gateway needs to delete it: large records would not fit into the
    transaction of a report."""
    return replace(
        checkpoint,
        state=CheckpointState.DELETING,
        delete_request_id=request_id,
        file_bytes={},
        metadata_json="{}",
    )


def needed_by(records: Records, trial: Trial) -> list[str]:
    """Returns the checkpoint that the trial continues from, and the one that its live allocation started from, which
    ranks may still be reading."""
    allocation = live_allocation_of(records, trial)
    started_from = [allocation.checkpoint_id] if allocation is not None and allocation.checkpoint_id else []
    goes_on_from = [trial.latest_checkpoint_id] if trial.state is not State.TERMINAL else []
    return goes_on_from + started_from


def _check_deletable(records: Records, checkpoint: Checkpoint) -> None:
    if checkpoint.state is CheckpointState.DELETING:
        raise conflict("checkpoint.deleting", f"checkpoint {checkpoint.id} is being deleted already")
    trial = records.find(Trial, checkpoint.trial_id)
    if trial is not None and checkpoint.id in needed_by(records, trial):
        raise conflict(
            "checkpoint.needed",
            f"trial {trial.id} ({trial.state}) goes on from checkpoint {checkpoint.id}, so nothing was deleted; wait "
            f"for its end, or end it with: gangline trial kill {trial.id}",
        )
    check_not_begun_from(records, checkpoint.id)
    check_not_registered(records, checkpoint.id)


def check_not_begun_from(records: Records, checkpoint_id: str) -> None:
    """Raises GanglineError `checkpoint.needed` while trials of another experiment may begin from the checkpoint."""
    for experiment in records.experiments_beginning_from(checkpoint_id):
        raise conflict(
            "checkpoint.needed",
            f"the trials of experiment {experiment.id} begin from checkpoint {checkpoint_id}, so nothing was deleted; "
            f"wait for its end, or end it with: gangline experiment kill {experiment.id}",
        )


def check_not_registered(records: Records, checkpoint_id: str) -> None:
    """Raises GanglineError `checkpoint.registered` while a version of a model names the checkpoint."""
    for version in records.versions_of_checkpoint(checkpoint_id):
        model = records.find(Model, version.model_id)
        name = model.name if model is not None else str(version.model_id)
        raise conflict(
            "checkpoint.registered",
            f"checkpoint {checkpoint_id} is version {version.number} of model {name!r}, so nothing was deleted; remove "
            f"the version first with: gangline model delete-version {shlex.quote(name)} {version.number}",
        )
