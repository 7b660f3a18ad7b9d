"""PURE: the requests for changes of users, workspaces, projects, templates and models: who may make them, and
repeated ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gangline.domain.experiment import ProjectCounter
from gangline.domain.named_kind import NamedKind
from gangline.domain.state import ProjectAction
from gangline.errors import ErrorKind, GanglineError
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
