"""PURE: archives an experiment, and deletes one for good.

A deletion has three stages, which the experiment's record names, so any leader and any gateway can continue it. In
stage FILES the checkpoints are marked, and gateways delete all files but the code, and the history. In stage RECORDS
the leader removes the records of trials and search, some at a time. In stage CODE gateways delete the code archive.
The stage is skipped where another experiment has the same code. The experiment's own record is removed last.

An id below the counter of ids without a record belongs to a deleted experiment, because ids are never reused.
"""

from __future__ import annotations

from dataclasses import replace

from gangline.domain.experiment import Experiment, Trial
from gangline.domain.id import absent
from gangline.domain.resource import Counter
from gangline.domain.search import Search, SearchLog, search_log_id
from gangline.domain.state import CheckpointState, DeletionStage, State
from gangline.errors import conflict
from services.scheduler.state.records import SINGLETON, Draft, Records, Reference, StateChange, get
from services.scheduler.transition.checkpoint import (
    MAX_MARKED,
    check_not_begun_from,
    check_not_registered,
    marked,
    needed_by,
)

# Records in one transaction, which etcd limits to 128 operations.
MAX_REMOVED = 100


def archive_experiment(records: Records, experiment_id: int) -> StateChange:
    """Takes an ended experiment out of listings. Raises GanglineError `experiment.not_found`, `experiment.not_ended`,
    `experiment.deleting`."""
    return _set_archived(records, experiment_id, archived=True)


def unarchive_experiment(records: Records, experiment_id: int) -> StateChange:
    """Shows the experiment in listings again. Raises the same errors."""
    return _set_archived(records, experiment_id, archived=False)


def delete_experiment(records: Records, experiment_id: int) -> StateChange:
    """Begins to delete an ended experiment. One that is being deleted, or was deleted, changes nothing.

    Raises GanglineError `experiment.not_found`, `experiment.not_ended`, and `experiment.needed` or
    `checkpoint.needed` while a trial of another experiment goes on, or begins, from one of its checkpoints, and
    `checkpoint.registered` while a version of a model names one.
    """
    experiment = records.find(Experiment, experiment_id)
    if experiment is None:
        _check_was_deleted(records, experiment_id)
        return StateChange()
    if experiment.is_deleting:
        return StateChange()
    _check_ended(experiment, "deleted")
    _check_not_needed(records, experiment)
    draft = Draft(records)
    _mark_checkpoints(draft, experiment.id)
    draft.put(replace(experiment, deletion=DeletionStage.FILES))
    return draft.change


def continue_deletion(records: Records, experiment: Experiment) -> StateChange:
    """Returns the leader's next step of a deletion; empty while gateways have to delete files."""
    draft = Draft(records)
    match experiment.deletion:
        case DeletionStage.FILES:
            _mark_checkpoints(draft, experiment.id)
        case DeletionStage.RECORDS:
            _remove_records(draft, experiment)
    return draft.change


def confirm_deleted(records: Records, experiment_id: int, stage: DeletionStage | None) -> StateChange:
    """Ends a stage of which a gateway has deleted all files. A report of another stage changes nothing."""
    experiment = records.find(Experiment, experiment_id)
    if experiment is None or experiment.deletion is None or experiment.deletion is not stage:
        return StateChange()
    draft = Draft(records)
    match stage:
        case DeletionStage.FILES if not _has_checkpoints(records, experiment_id):
            draft.put(replace(experiment, deletion=DeletionStage.RECORDS))
        case DeletionStage.CODE:
            draft.delete(Experiment, experiment_id)
    return draft.change


def check_code_stays(records: Records, code_sha256: str, num_deleted: int | None) -> None:
    """Raises GanglineError `code.deleting` while gateways delete this code, and if it may have been deleted after the
    gateway had found it in the storage. It is no failure that may pass: the caller has to upload the code again.

    num_deleted: how many experiments had been deleted when the gateway found it; None if it did not say.
    """
    for experiment in records.experiments_in_deletion():
        if experiment.deletion is DeletionStage.CODE and code_sha256 in experiment.code_sha256s:
            raise conflict(
                "code.deleting",
                f"the code {code_sha256} is being deleted with experiment {experiment.id}; upload it again and submit "
                "once more",
            )
    if num_deleted is not None and records.has_deleted_code(code_sha256, num_deleted):
        raise conflict(
            "code.deleting",
            f"the code {code_sha256} may have been deleted with an experiment just now; upload it again and submit "
            "once more",
        )


def _set_archived(records: Records, experiment_id: int, *, archived: bool) -> StateChange:
    experiment = get(records, Experiment, experiment_id)
    if experiment.is_deleting:
        raise conflict("experiment.deleting", f"experiment {experiment_id} is being deleted; nothing else changes it")
    if archived:
        _check_ended(experiment, "archived")
    draft = Draft(records)
    draft.put(replace(experiment, archived=archived))
    return draft.change


def _check_ended(experiment: Experiment, done: str) -> None:
    """Refuses an experiment that has not ended. done: the action as a participle, such as "deleted"."""
    if experiment.state is not State.TERMINAL:
        raise conflict(
            "experiment.not_ended",
            f"experiment {experiment.id} has not ended ({experiment.state}), so it cannot be {done}; end it first "
            f"with: gangline experiment kill {experiment.id}",
        )


def _check_was_deleted(records: Records, experiment_id: int) -> None:
    counter = records.find(Counter, SINGLETON)
    if counter is None or not 0 < experiment_id < counter.next_value:
        raise absent("experiment", experiment_id)


def _check_not_needed(records: Records, experiment: Experiment) -> None:
    own_ids = {
        checkpoint.id for trial in records.trials_of(experiment.id) for checkpoint in records.checkpoints_of(trial.id)
    }
    if not own_ids:
        return
    for checkpoint_id in sorted(own_ids):
        check_not_begun_from(records, checkpoint_id)
        check_not_registered(records, checkpoint_id)
    for trial in records.all_of(Trial):
        if trial.state is State.TERMINAL or trial.experiment_id == experiment.id:
            continue
        needed_id = next((checkpoint_id for checkpoint_id in needed_by(records, trial) if checkpoint_id in own_ids), "")
        if needed_id:
            raise conflict(
                "experiment.needed",
                f"trial {trial.id} ({trial.state}) goes on from checkpoint {needed_id} of experiment {experiment.id}, "
                f"so nothing was deleted; wait for its end, or end it with: gangline trial kill {trial.id}",
            )


def _has_checkpoints(records: Records, experiment_id: int) -> bool:
    return any(records.checkpoints_of(trial.id) for trial in records.trials_of(experiment_id))


def _mark_checkpoints(draft: Draft, experiment_id: int) -> None:
    unmarked = [
        checkpoint
        for trial in draft.trials_of(experiment_id)
        for checkpoint in draft.checkpoints_of(trial.id)
        if checkpoint.state is CheckpointState.COMPLETED
    ]
    for checkpoint in unmarked[:MAX_MARKED]:
        draft.put(marked(checkpoint))


def _remove_records(draft: Draft, experiment: Experiment) -> None:
    doomed: list[Reference] = [(Trial, trial.id) for trial in draft.trials_of(experiment.id)]
    doomed += [(SearchLog, log_id) for log_id in _log_ids(draft, experiment.id)]
    for reference in doomed[:MAX_REMOVED]:
        draft.delete(*reference)
    if len(doomed) <= MAX_REMOVED:
        draft.delete(Search, experiment.id)
        _end_records(draft, experiment)


def _log_ids(draft: Draft, experiment_id: int) -> list[str]:
    """Returns the pages that are left, the last one first. Pages are counted without gaps, so the pages that one step
    leaves are found by the next one."""
    log_ids: list[str] = []
    while draft.find(SearchLog, search_log_id(experiment_id, len(log_ids))) is not None:
        log_ids.append(search_log_id(experiment_id, len(log_ids)))
    return log_ids[::-1]


def _end_records(draft: Draft, experiment: Experiment) -> None:
    own = set(experiment.code_sha256s) - {""}
    for other in draft.all_of(Experiment):
        if other.id != experiment.id:
            own.difference_update(other.code_sha256s)
    if not own:
        draft.delete(Experiment, experiment.id)
        return
    # Gateways delete all code that the record names in this stage, so it names what no other experiment has.
    *earlier, newest = sorted(own)
    draft.put(replace(experiment, deletion=DeletionStage.CODE, code_sha256=newest, earlier_code_sha256s=tuple(earlier)))
