"""PURE: the requests for changes of users, workspaces, projects, templates and models: who may make them, and
repeated ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gangline.config.layer.lookup import unknown_id
from gangline.domain.access import Role, lacks_role
from gangline.domain.experiment import ProjectCounter, Workspace
from gangline.domain.named_kind import NamedKind
from gangline.domain.state import ProjectAction
from gangline.domain.user import User
from services.scheduler.state.records import SINGLETON, Draft, Records
from services.scheduler.transition.rights import (
    check_owned,
    check_role,
    check_somewhere,
    not_owner,
    role_for_cluster,
    role_in,
)

# Requests that each record remembers. A repeat comes within seconds, long before so many others.
MAX_REQUESTS = 8
MAX_REMOVALS = 64


@dataclass(frozen=True, slots=True)
class Caller:
    """The user of a change, and the id of the request. A change with an id that was used before changes nothing.
    is_admin: by the gateway, whose copy of the users may be old."""

    user: str
    is_admin: bool
    request_id: str

    @classmethod
    def of(cls, request: Any) -> Caller:
        """request: of a gateway, with `user`, `is_admin` and `request_id`."""
        return cls(request.user, request.is_admin, request.request_id)

    def is_unlimited(self, records: Records) -> bool:
        """Returns whether the caller is an administrator by the leader's own record of the user, if it has one."""
        record = records.find(User, self.user)
        return self.is_admin if record is None else record.is_admin


@dataclass(frozen=True, slots=True)
class NamedChange:
    """A user's request to create or change a record that has a name."""

    kind: NamedKind[Any]
    action: ProjectAction
    caller: Caller
    pool_names: Collection[str]
    now: float
    key: int | str = 0  # id of the record, or its name for a kind without ids; 0 for a new record that gets an id
    wanted: Mapping[str, Any] = field(default_factory=dict)  # the name and the values of fields to set
    parent_id: int = 0  # id of the record that holds a new one; 0 for a kind without parents


def check_change(records: Records, caller: Caller, kind: NamedKind[Any], record: Any, action: str) -> None:
    """Admits who may change a record: of a workspace its admins, of a project or a model its owner as an editor and the
    admins of its workspace, of a template its owner. action: the attempted change, as "edit workspace 'lab'".

    Raises GanglineError `auth.not_owner`, `auth.no_role`, and `<kind>.not_found` for what the caller does not see.
    """
    if caller.is_unlimited(records):
        return
    workspace_id = _workspace_id_of(record)
    if workspace_id is None:
        if caller.user != record.owner:
            raise not_owner(caller.user, record.owner, action)
        check_somewhere(records, caller.user, Role.EDITOR, action)
        return
    role = role_in(records, caller.user, workspace_id)
    if role is None:
        raise unknown_id(kind, record.id)
    if isinstance(record, Workspace):
        if role is not Role.ADMIN:
            raise not_owner(caller.user, record.owner, action)
    else:
        check_owned(records, caller.user, record.owner, workspace_id, action)


def check_creation(records: Records, caller: Caller, kind: NamedKind[Any], record: Any) -> None:
    """Admits who may create a record: a workspace an editor for the cluster, what is in a workspace an editor of it,
    and a template an editor of any workspace. Raises GanglineError `auth.no_role`, `workspace.not_found`."""
    if caller.is_unlimited(records):
        return
    action, workspace_id = f"create {kind.noun}s", _workspace_id_of(record)
    if workspace_id is None:
        check_somewhere(records, caller.user, Role.EDITOR, action)
    elif isinstance(record, Workspace):
        role = role_for_cluster(records, caller.user)
        if role is None or not role.includes(Role.EDITOR):
            raise lacks_role(caller.user, action, Role.EDITOR, "")
    else:
        check_role(records, caller.user, Role.EDITOR, workspace_id, action)


def _workspace_id_of(record: Any) -> int | None:
    """Returns the workspace of a record; None for a template, which belongs to the cluster."""
    return record.id if isinstance(record, Workspace) else getattr(record, "workspace_id", None)


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
