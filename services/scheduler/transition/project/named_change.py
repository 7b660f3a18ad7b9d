"""PURE: creates, edits, archives, unarchives and deletes workspaces, projects, templates and models, by the row of
their kind.

The calls of the service use it. `kind_rule.py` has the leader's rules for single fields and for deletions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gangline.config.layer.lookup import check_unarchived, find_named, unknown_id
from gangline.config.layer.template_check import check_name
from gangline.domain.named_kind import N, NamedKind
from gangline.domain.state import ProjectAction
from gangline.errors import ErrorKind, GanglineError, conflict
from services.scheduler.state.records import Draft, Records, StateChange
from services.scheduler.transition.project.kind_rule import delete_named, with_fields
from services.scheduler.transition.project.rule import (
    NamedChange,
    check_change,
    check_creation,
    counter_of,
    note_removal,
    remember,
    was_removed_by,
)

# Records of each kind. All of them are in the memory of the leader and of each gateway.
MAX_RECORDS = 10_000
_DONE = {
    ProjectAction.EDIT: "edited",
    ProjectAction.ARCHIVE: "archived",
    ProjectAction.UNARCHIVE: "unarchived",
    ProjectAction.DELETE: "deleted",
}


def record_of_request(records: Records, kind: NamedKind[N], request_id: str) -> N | None:
    """Returns the record that this request created or changed."""
    return next((record for record in records.all_of(kind.record_type) if request_id in record.request_ids), None)


def find_record(records: Records, kind: NamedKind[N], key: int | str) -> N:
    """Returns the record of this id, or of this name. Raises GanglineError `<kind>.not_found`."""
    if isinstance(key, str):
        return find_named(kind, key, records.all_of(kind.record_type))
    record = records.find(kind.record_type, key)
    if record is None and kind.default is not None and kind.key_of(kind.default) == key:
        return kind.default
    if record is None:
        raise unknown_id(kind, key)
    return record


def change_named(records: Records, asked: NamedChange) -> StateChange:
    """Creates, edits, archives, unarchives or deletes a record. A request that has done so before changes nothing. The
    record that a request created is found by `record_of_request`.

    Raises GanglineError `auth.not_owner`, `<kind>.not_found`, `<kind>.name`, `<kind>.exists`, `<kind>.default`,
    `<kind>.archived`, `request.reused`, and the errors of `kind_rule.py`.
    """
    kind, action, caller = asked.kind, asked.action, asked.caller
    if action is ProjectAction.CREATE:
        if kind.is_numbered or records.find(kind.record_type, asked.key) is None:
            return _create(records, asked)
        action = ProjectAction.EDIT
    elif action is ProjectAction.DELETE and was_removed_by(records, caller):
        return StateChange()
    record = find_record(records, kind, asked.key)
    # The request that set a record without an id may delete it later: a repeated deletion would not find the record.
    if caller.request_id in record.request_ids and (kind.is_numbered or action is not ProjectAction.DELETE):
        return StateChange()
    if kind.default is not None and kind.key_of(kind.default) == asked.key:
        raise conflict(
            f"{kind.noun}.default",
            f"{kind.noun} {record.name!r} belongs to the cluster and cannot be {_DONE[action]}; create one of your own",
        )
    verb = kind.verbs.get(action, action.lower())
    check_change(records, caller, kind, record, f"{verb} {kind.noun} {record.name!r}")
    draft = Draft(records)
    if action is ProjectAction.DELETE:
        delete_named(draft, kind, record)
        note_removal(draft, caller)
        return draft.change
    if action is ProjectAction.EDIT:
        changed = _edited(records, asked, record)
    else:
        changed = replace(record, archived=action is ProjectAction.ARCHIVE)
    if changed.name != record.name:
        # A gateway that does not find the new name waits for this record.
        counter = counter_of(records)
        draft.put(replace(counter, num_renames=counter.num_renames + 1))
    if changed != record:
        changed = replace(changed, request_ids=remember(record.request_ids, caller))
        draft.put(_with_time(changed, asked.now))
    return draft.change


def _create(records: Records, asked: NamedChange) -> StateChange:
    kind, caller = asked.kind, asked.caller
    # A record without an id is found by its name, so the request that set another one creates it all the same.
    earlier = record_of_request(records, kind, caller.request_id) if kind.is_numbered else None
    if earlier is not None:
        _check_repeated(asked, earlier)
        return StateChange()
    values: dict[str, Any] = {"name": asked.wanted.get("name", ""), "owner": caller.user, "created_at": asked.now}
    parent = None
    if kind.parent is not None:
        parent = find_record(records, kind.parent, asked.parent_id)
        values[f"{kind.parent.noun}_id"] = asked.parent_id
    if "workspace_id" not in kind.fields:
        check_creation(records, caller, kind, kind.record_type(**({"id": 0} if kind.is_numbered else {}), **values))
    if kind.parent is not None:
        check_unarchived(kind.parent, parent)
    _check_free(records, asked, values["name"], parent)
    _check_number(records, kind)
    draft = Draft(records)
    if kind.is_numbered:
        counter = counter_of(records)
        # A counter that a leader of an earlier version has written has no id for a kind that is newer than that leader.
        taken = max((int(kind.key_of(other)) for other in records.all_of(kind.record_type)), default=0)
        values["id"] = max(getattr(counter, kind.counter), taken + 1)
        draft.put(replace(counter, **{kind.counter: values["id"] + 1}))
    record = with_fields(records, asked, kind.record_type(**values, request_ids=(caller.request_id,)))
    if "workspace_id" in kind.fields:
        check_creation(records, caller, kind, record)
    draft.put(_with_time(record, asked.now))
    return draft.change


def _with_time(record: Any, now: float) -> Any:
    """Returns the record with the time of its newest change; as it is where its kind has none."""
    return replace(record, updated_at=now) if hasattr(record, "updated_at") else record


def _check_repeated(asked: NamedChange, earlier: Any) -> None:
    """Refuses another creation under the request id of `earlier`: its answer would be the wrong record. Other fields
    are not compared, because later edits change them. Raises GanglineError `request.reused`."""
    kind = asked.kind
    is_same = (earlier.name, earlier.owner) == (asked.wanted.get("name", ""), asked.caller.user)
    if not is_same or (kind.parent is not None and kind.parent_id_of(earlier) != asked.parent_id):
        raise conflict(
            "request.reused",
            f"request id {asked.caller.request_id!r} was used before, for the {kind.noun} {earlier.name!r}; use a new "
            f"one for another {kind.noun}",
        )


def _edited(records: Records, asked: NamedChange, record: Any) -> Any:
    kind = asked.kind
    parent = find_record(records, kind.parent, kind.parent_id_of(record)) if kind.parent is not None else None
    check_unarchived(kind, record, parent)
    if asked.wanted.get("name", record.name) != record.name:
        _check_free(records, asked, asked.wanted["name"], parent)
    changed = with_fields(records, asked, record)
    if getattr(changed, "workspace_id", None) != getattr(record, "workspace_id", None):
        check_creation(records, asked.caller, kind, changed)
    return changed


def _check_number(records: Records, kind: NamedKind[Any]) -> None:
    if len(list(records.all_of(kind.record_type))) >= MAX_RECORDS:
        verb = kind.verbs.get(ProjectAction.DELETE, "delete")
        raise conflict(
            f"{kind.noun}.number",
            f"there are {MAX_RECORDS} {kind.noun}s, and no more are allowed; {verb} some first with: gangline "
            f"{kind.noun} {verb}",
        )


def _check_free(records: Records, asked: NamedChange, name: str, parent: Any) -> None:
    kind = asked.kind
    check_name(kind.noun, name)
    for other in records.all_of(kind.record_type):
        if other.name == name and (parent is None or kind.parent_id_of(other) == parent.id):
            place = f"{kind.parent.noun} {parent.name!r} has" if kind.parent is not None else "there is"
            raise GanglineError(
                f"{kind.noun}.exists",
                f"{place} a {kind.noun} {name!r} already, of {other.owner or 'the cluster'}; choose another name",
                ErrorKind.ALREADY_EXISTS,
            )
