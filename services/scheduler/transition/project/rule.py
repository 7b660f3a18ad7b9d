"""PURE: the rules that workspaces, projects and templates share: who may change them, repeated requests, defaults."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from gangline.config.layer.lookup import find_template
from gangline.config.layer.secret import restore_default_secrets
from gangline.config.layer.template_check import check_description, check_storage
from gangline.domain.experiment import (
    Experiment,
    Project,
    ProjectChange,
    ProjectCounter,
    ProjectDefaults,
    Template,
    Workspace,
)
from gangline.errors import ErrorKind, GanglineError, conflict, not_found
from services.scheduler.state.records import SINGLETON, Draft, Records

# Requests that each record remembers. A repeat comes within seconds, long before so many others.
MAX_REQUESTS = 8
MAX_REMOVALS = 64


@dataclass(frozen=True, slots=True)
class Caller:
    """The user of a change, and the id of the request. A change with an id that was used before changes nothing."""

    user: str
    is_admin: bool
    request_id: str


def check_owner(caller: Caller, owner: str, action: str) -> None:
    """Admits the owner and administrators. action: the attempted change, as "edit workspace 'lab'". Raises
    GanglineError `auth.not_owner`."""
    if not caller.is_admin and caller.user != owner:
        raise GanglineError(
            "auth.not_owner",
            f"{caller.user} may not {action}: only {owner or 'the cluster'} and administrators may; ask one of them",
            ErrorKind.FORBIDDEN,
        )


def remember(request_ids: tuple[str, ...], caller: Caller) -> tuple[str, ...]:
    """Returns the newest request ids of a record after this change."""
    return (*request_ids, caller.request_id)[-MAX_REQUESTS:]


def counter_of(records: Records) -> ProjectCounter:
    return records.find(ProjectCounter, SINGLETON) or ProjectCounter()


def note_removal(draft: Draft, caller: Caller) -> None:
    """Remembers the request of a deletion, whose record is gone."""
    counter = counter_of(draft)
    draft.put(replace(counter, removal_request_ids=(*counter.removal_request_ids, caller.request_id)[-MAX_REMOVALS:]))


def was_removed_by(records: Records, caller: Caller) -> bool:
    return caller.request_id in counter_of(records).removal_request_ids


def with_defaults(
    records: Records, defaults: ProjectDefaults, change: ProjectChange, pool_names: Collection[str]
) -> ProjectDefaults:
    """Returns the defaults after a change. Checks all values of the change but the name. A masked secret keeps its
    present value.

    Raises GanglineError `pool.not_found`, `template.not_found`, `project.description`, `config.*`.
    """
    check_description(change.description or "")
    if change.resource_pool and change.resource_pool not in pool_names:
        pools = ", ".join(sorted(pool_names))
        raise not_found("pool.not_found", f"there is no pool {change.resource_pool!r}; the pools are {pools}")
    if change.checkpoint_storage_json:
        check_storage(change.checkpoint_storage_json)
    if change.template:
        find_template(change.template, records.all_of(Template))
    changed = {
        name: value
        for name in ("resource_pool", "checkpoint_storage_json", "template")
        if (value := getattr(change, name)) is not None
    }
    if change.checkpoint_storage_json:
        changed["checkpoint_storage_json"] = restore_default_secrets(change.checkpoint_storage_json, defaults)
    return replace(defaults, **changed)


def experiments_in(records: Records, *project_ids: int) -> int:
    """Counts the experiments that these projects hold, also those that are being deleted."""
    return sum(experiment.home_id in project_ids for experiment in records.all_of(Experiment))


def projects_of(records: Records, workspace: Workspace) -> list[Project]:
    return [project for project in records.all_of(Project) if project.workspace_id == workspace.id]


def default_is_fixed(kind: str, name: str, done: str) -> GanglineError:
    """Makes the error for a change of the default workspace or project. done: the action as a participle."""
    return conflict(
        f"{kind}.default", f"{kind} {name!r} belongs to the cluster and cannot be {done}; create one of your own"
    )
