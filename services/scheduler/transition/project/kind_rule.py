"""PURE: the leader's rules for single fields of workspaces, projects, templates and models, and for their deletion.

A new kind of named records adds the rules of its fields to `_FIELD_RULES`, and what keeps it to `delete_named`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from gangline.config.layer.experiment_text import check_text_change, merge_labels
from gangline.config.layer.lookup import check_unarchived, find_named
from gangline.config.layer.registry_check import check_metadata, check_notes
from gangline.config.layer.secret import restore_default_secrets, restore_secrets
from gangline.config.layer.template_check import check_description, check_storage, check_template
from gangline.domain.access import WorkspaceRoles
from gangline.domain.experiment import Experiment, Project, ProjectDefaults, Template, TextChange, Workspace
from gangline.domain.named_kind import KINDS, TEMPLATE, WORKSPACE, N, NamedKind
from gangline.domain.registry import Model
from gangline.errors import conflict, not_found
from services.scheduler.state.records import Draft, Records
from services.scheduler.transition.project.rule import NamedChange
from services.scheduler.transition.quota_use import forget_workspace
from services.scheduler.transition.rights import seen_workspaces

# Cap on the records that are deleted with the one that holds them. Etcd takes 128 operations in one transaction.
MAX_HELD_DELETED = 100
_DEFAULTS = tuple(field.name for field in fields(ProjectDefaults))


def with_fields(records: Records, asked: NamedChange, record: Any) -> Any:
    """Returns the record with the values of its fields. Checks all values but the name, also those of fields that the
    kind does not have. A masked secret keeps its present value.

    Raises GanglineError `pool.not_found`, `template.not_found`, `<kind>.description`, `config.*`, `texts.*`,
    `model.metadata`, `document.invalid`, and `workspace.*` for the workspace of a model.
    """
    settled = dict(asked.wanted)
    for name, settle in _FIELD_RULES.items():
        if name in settled:
            settled[name] = settle(settled[name], record, records, asked)
    changed: dict[str, Any] = {name: settled[name] for name in asked.kind.fields if name in settled}
    if "defaults" in asked.kind.fields:
        defaults = {name: settled[name] for name in _DEFAULTS if name in settled}
        changed["defaults"] = replace(record.defaults, **defaults)
    return replace(record, **changed)


def delete_named(draft: Draft, kind: NamedKind[N], record: N) -> None:
    """Deletes the record together with the records that it holds.

    Raises GanglineError `<kind>.not_empty` while experiments, models or versions are in it, and `template.needed` for a
    default.
    """
    held = [
        (inner, child)
        for inner in KINDS
        if inner.parent is kind
        for child in draft.all_of(inner.record_type)
        if inner.parent_id_of(child) == kind.key_of(record)
    ]
    _check_no_experiments(draft, kind, record, [child for _, child in held])
    if isinstance(record, Workspace):
        _check_no_models(draft, record)
    if isinstance(record, Model):
        _check_no_versions(draft, record)
    if len(held) > MAX_HELD_DELETED:
        noun = held[0][0].noun
        raise conflict(
            f"{kind.noun}.not_empty",
            f"{kind.noun} {record.name!r} has {len(held)} {noun}s, and at most {MAX_HELD_DELETED} are deleted with it; "
            f"delete some first with: gangline {noun} delete",
        )
    if isinstance(record, Template):
        _check_no_default(draft, record)
    if isinstance(record, Workspace):
        forget_workspace(draft, record.id)
    for inner, child in held:
        draft.delete(inner.record_type, inner.key_of(child))
    draft.delete(kind.record_type, kind.key_of(record))
    if isinstance(record, Workspace):
        draft.delete(WorkspaceRoles, record.id)


def _check_no_experiments(records: Records, kind: NamedKind[N], record: N, held: Collection[Any]) -> None:
    """Counts also experiments that are being deleted."""
    project_ids = {each.id for each in (record, *held) if isinstance(each, Project)}
    count = sum(experiment.home_id in project_ids for experiment in records.all_of(Experiment)) if project_ids else 0
    if count:
        raise conflict(
            f"{kind.noun}.not_empty",
            f"{kind.noun} {record.name!r} holds {count} experiment{'' if count == 1 else 's'}, so it was not deleted; "
            "delete them, or move them with: gangline experiment move ID PROJECT_ID",
        )


def _check_no_models(records: Records, workspace: Workspace) -> None:
    models = [model for model in records.all_of(Model) if model.workspace_id == workspace.id]
    if models:
        raise conflict(
            "workspace.not_empty",
            f"workspace {workspace.name!r} holds {len(models)} model{'' if len(models) == 1 else 's'}, such as "
            f"{models[0].name!r}, so it was not deleted; delete them, or move them with: gangline model edit NAME "
            "--workspace",
        )


def _check_no_versions(records: Records, model: Model) -> None:
    numbers = [version.number for version in records.versions_of_model(model.id)]
    if numbers:
        raise conflict(
            "model.not_empty",
            f"model {model.name!r} has {len(numbers)} version{'' if len(numbers) == 1 else 's'}, so it was not "
            f"deleted; delete them first with: gangline model delete-version {shlex.quote(model.name)} {max(numbers)}",
        )


def _check_no_default(records: Records, template: Template) -> None:
    holders: list[Workspace | Project] = [*records.all_of(Workspace), *records.all_of(Project)]
    for holder in holders:
        if holder.defaults.template == template.name:
            what = f"{type(holder).__name__.lower()} {holder.name!r}"
            raise conflict(
                "template.needed",
                f"template {template.name!r} is the default of {what}, so it was not removed; edit the default first, "
                "with --default-template",
            )


def _description(wanted: str, _present: Any, _records: Records, asked: NamedChange) -> str:
    check_description(asked.kind.noun, wanted)
    return wanted


def _pool(wanted: str, _present: Any, _records: Records, asked: NamedChange) -> str:
    if wanted and wanted not in asked.pool_names:
        pools = ", ".join(sorted(asked.pool_names))
        raise not_found("pool.not_found", f"there is no pool {wanted!r}; the pools are {pools}")
    return wanted


def _template(wanted: str, _present: Any, records: Records, _asked: NamedChange) -> str:
    return find_named(TEMPLATE, wanted, records.all_of(Template)).name if wanted else wanted


def _storage(wanted: str, present: Workspace | Project, _records: Records, _asked: NamedChange) -> str:
    check_storage(wanted)
    return restore_default_secrets(wanted, present.defaults)


def _settings(wanted: str, present: Template, _records: Records, _asked: NamedChange) -> str:
    check_template(wanted)
    return restore_secrets(wanted, [present.config_json])


def _notes(wanted: str, _present: Any, _records: Records, _asked: NamedChange) -> str:
    check_notes(wanted)
    return wanted


def _workspace_id(wanted: str, _present: Any, records: Records, asked: NamedChange) -> int:
    """wanted: the name of the workspace."""
    caller = asked.caller
    seen = records.all_of(Workspace) if caller.is_unlimited(records) else seen_workspaces(records, caller.user)
    workspace = find_named(WORKSPACE, wanted, seen)
    check_unarchived(WORKSPACE, workspace)
    return workspace.id


def _metadata(wanted: str, _present: Any, _records: Records, asked: NamedChange) -> str:
    check_metadata(wanted, f"the metadata of the {asked.kind.noun}")
    return wanted


def _labels(wanted: TextChange, present: Model, _records: Records, _asked: NamedChange) -> tuple[str, ...]:
    check_text_change(wanted)
    return merge_labels(present.labels, wanted)


# By the name of a field in a change. Each function returns the value to store; they are called in this order.
_FIELD_RULES: Mapping[str, Callable[[Any, Any, Records, NamedChange], Any]] = {
    "description": _description,
    "resource_pool": _pool,
    "template": _template,
    "checkpoint_storage_json": _storage,
    "config_json": _settings,
    "notes": _notes,
    "workspace_id": _workspace_id,
    "metadata_json": _metadata,
    "labels": _labels,
}
