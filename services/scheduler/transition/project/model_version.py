"""PURE: registers checkpoints as versions of models, edits and deletes versions, and moves aliases.

A version keeps its checkpoint: `transition/checkpoint.py` and `transition/removal.py` refuse to delete it. So a version
is only made of a checkpoint that is there, in the same order of transactions. An alias is in its model's record, so it
points at one version at every moment.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from gangline.config.layer.lookup import check_unarchived
from gangline.config.layer.registry_check import (
    check_alias,
    check_num_aliases,
    check_num_versions,
    check_version_change,
    no_version,
)
from gangline.domain.document import read_document
from gangline.domain.experiment import VALIDATION_METRICS, Checkpoint, Experiment
from gangline.domain.id import absent
from gangline.domain.named_kind import MODEL
from gangline.domain.registry import Model, ModelAlias, ModelVersion, ModelVersionChange, version_id
from gangline.domain.state import CheckpointState, ProjectAction
from gangline.errors import conflict, invalid
from services.scheduler.state.records import Draft, Records, StateChange, get
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.project.named_change import find_record
from services.scheduler.transition.project.rule import Caller, check_change, note_removal, remember, was_removed_by
from services.scheduler.transition.report import bounded_metrics
from services.scheduler.transition.rights import sees_checkpoint

_NO_CHANGE = ModelVersionChange()


@dataclass(frozen=True, slots=True)
class VersionRequest:
    """A user's request to register, edit or delete a version."""

    action: ProjectAction
    caller: Caller
    now: float
    model_id: int
    number: int = 0  # 0 to register one
    checkpoint_id: str = ""  # of a new version
    change: ModelVersionChange = _NO_CHANGE
    aliases: tuple[str, ...] = ()  # aliases that point at a new version from then on


_VERBS = {ProjectAction.CREATE: "register", ProjectAction.EDIT: "edit", ProjectAction.DELETE: "delete"}


@dataclass(frozen=True, slots=True)
class AliasRequest:
    """A user's request to point an alias at a version."""

    caller: Caller
    now: float
    model_id: int
    alias: str
    version: int  # 0 removes the alias
    expected_version: int | None = None  # version at which it has to point before, 0 for none; None for any


def version_of_request(records: Records, model_id: int, request_id: str) -> ModelVersion | None:
    """Returns the version that this request registered or changed."""
    versions = records.versions_of_model(model_id)
    return next((version for version in versions if request_id in version.request_ids), None)


def change_version(records: Records, asked: VersionRequest) -> StateChange:
    """Registers, edits or deletes a version. A request that has done so before changes nothing.

    Raises GanglineError `model.not_found`, `auth.not_owner`, `model.archived`, `model.no_version`, `model.aliased`,
    `checkpoint.not_found`, `checkpoint.deleting`, `experiment.deleting`, `request.action`, `request.reused`, and those
    of `registry_check.py`.
    """
    if asked.action is ProjectAction.DELETE and was_removed_by(records, asked.caller):
        return StateChange()
    verb = _VERBS.get(asked.action)
    if verb is None:
        raise invalid("request.action", f"a version cannot be {asked.action.lower()}d; archive its model in its place")
    model = find_record(records, MODEL, asked.model_id)
    # Before anything else, so that nobody learns of a model's versions who does not see it.
    check_change(records, asked.caller, MODEL, model, f"{verb} versions of model {model.name!r}")
    match asked.action:
        case ProjectAction.CREATE:
            return _register(records, asked, model)
        case ProjectAction.EDIT:
            return _edit(records, asked, model)
    return _delete(records, asked, model)


def set_alias(records: Records, asked: AliasRequest) -> StateChange:
    """Points an alias at a version, or removes it. Setting it to where it points already changes nothing.

    Raises GanglineError `model.not_found`, `auth.not_owner`, `model.archived`, `model.no_version`, `model.alias_moved`,
    `model.alias`, `model.aliases`.
    """
    model = find_record(records, MODEL, asked.model_id)
    check_change(records, asked.caller, MODEL, model, f"move aliases of model {model.name!r}")
    if asked.caller.request_id in model.request_ids:
        return StateChange()
    check_unarchived(MODEL, model)
    present = model.version_of(asked.alias)
    if asked.expected_version not in (None, present):
        where = f"points at version {present}" if present else "does not exist"
        raise conflict(
            "model.alias_moved",
            f"alias {asked.alias!r} of model {model.name!r} {where} by now, not at version {asked.expected_version}, "
            "so nothing was changed; read the model again",
        )
    if asked.version == present:
        return StateChange()
    if asked.version:
        check_alias(asked.alias)
        _find(records, model, asked.version)
    draft = Draft(records)
    draft.put(_with_aliases(model, (asked.alias,), asked.version, asked.caller, asked.now))
    return draft.change


def _register(records: Records, asked: VersionRequest, model: Model) -> StateChange:
    earlier = version_of_request(records, model.id, asked.caller.request_id)
    if earlier is not None:
        if earlier.checkpoint_id != asked.checkpoint_id:
            raise conflict(
                "request.reused",
                f"request id {asked.caller.request_id!r} was used before, for version {earlier.number} of model "
                f"{model.name!r}; use a new one for another version",
            )
        return StateChange()
    check_unarchived(MODEL, model)
    check_version_change(asked.change)
    for alias in asked.aliases:
        check_alias(alias)
    check_num_versions(model.name, len(records.versions_of_model(model.id)) + 1)
    checkpoint = _find_whole(records, asked.caller, asked.checkpoint_id)
    number = model.next_version
    version = ModelVersion(
        id=version_id(model.id, number),
        model_id=model.id,
        number=number,
        checkpoint_id=checkpoint.id,
        trial_id=checkpoint.trial_id,
        experiment_id=checkpoint.experiment_id,
        batches_completed=checkpoint.batches_completed,
        metrics_json=_metrics_of(records, checkpoint),
        owner=asked.caller.user,
        created_at=asked.now,
        request_ids=(asked.caller.request_id,),
    )
    draft = Draft(records)
    draft.put(_changed(version, asked.change))
    aliased = _with_aliases(model, asked.aliases, number, asked.caller, asked.now)
    draft.put(replace(aliased, next_version=number + 1))
    return draft.change


def _edit(records: Records, asked: VersionRequest, model: Model) -> StateChange:
    version = _find(records, model, asked.number)
    if asked.caller.request_id in version.request_ids:
        return StateChange()
    check_unarchived(MODEL, model)
    check_version_change(asked.change)
    changed = _changed(version, asked.change)
    draft = Draft(records)
    if changed != version:
        draft.put(replace(changed, request_ids=remember(version.request_ids, asked.caller)))
    return draft.change


def _delete(records: Records, asked: VersionRequest, model: Model) -> StateChange:
    """Refuses while an alias points at the version, because programs find the version by it."""
    version = _find(records, model, asked.number)
    aliases = model.aliases_of(version.number)
    if aliases:
        raise conflict(
            "model.aliased",
            f"version {version.number} of model {model.name!r} is its {', '.join(aliases)}, so it was not deleted; "
            f"point the alias elsewhere first, or remove it with: gangline model unalias {shlex.quote(model.name)} "
            f"{aliases[0]}",
        )
    draft = Draft(records)
    draft.delete(ModelVersion, version.id)
    draft.put(replace(model, updated_at=asked.now))
    note_removal(draft, asked.caller)
    return draft.change


def _find(records: Records, model: Model, number: int) -> ModelVersion:
    version = records.find(ModelVersion, version_id(model.id, number))
    if version is None:
        raise no_version(model.name, number)
    return version


def _find_whole(records: Records, caller: Caller, checkpoint_id: str) -> Checkpoint:
    """Returns the checkpoint to register. Only whole checkpoints have records."""
    checkpoint = records.find(Checkpoint, checkpoint_id)
    if checkpoint is None or not (caller.is_unlimited(records) or sees_checkpoint(records, caller.user, checkpoint)):
        raise absent("checkpoint", checkpoint_id)
    if checkpoint.state is not CheckpointState.COMPLETED:
        raise conflict(
            "checkpoint.deleting",
            f"checkpoint {checkpoint_id} is being deleted, so it cannot be registered; use another",
        )
    # A deletion marks the checkpoints of its experiment in several steps.
    if checkpoint.experiment_id and get(records, Experiment, checkpoint.experiment_id).is_deleting:
        raise conflict(
            "experiment.deleting",
            f"experiment {checkpoint.experiment_id} is being deleted with its checkpoint {checkpoint_id}, so it cannot "
            "be registered; use another",
        )
    return checkpoint


def _metrics_of(records: Records, checkpoint: Checkpoint) -> str:
    """Returns the validation metrics of the checkpoint, bounded like those of a trial. The metadata of the checkpoint
    has all of them."""
    metadata = read_document(checkpoint.metadata_json)
    metrics = metadata.get(VALIDATION_METRICS) if isinstance(metadata, dict) else None
    experiment = records.find(Experiment, checkpoint.experiment_id) if checkpoint.experiment_id else None
    metric = settled_of(experiment.config_json).searcher.metric if experiment is not None else ""
    return bounded_metrics(metrics if isinstance(metrics, dict) else {}, metric)


def _changed(version: ModelVersion, change: ModelVersionChange) -> ModelVersion:
    return replace(
        version,
        name=version.name if change.name is None else change.name,
        notes=version.notes if change.notes is None else change.notes,
        metadata_json=version.metadata_json if change.metadata_json is None else change.metadata_json,
    )


def _with_aliases(model: Model, names: tuple[str, ...], version: int, caller: Caller, now: float) -> Model:
    """Returns the model with these aliases at the version; version 0 removes them."""
    by_name = {alias.name: alias for alias in model.aliases if alias.name not in names}
    if version:
        by_name |= {name: ModelAlias(name, version) for name in names}
    check_num_aliases(model.name, len(by_name))
    aliases = tuple(by_name[name] for name in sorted(by_name))
    return replace(model, aliases=aliases, updated_at=now, request_ids=remember(model.request_ids, caller))
