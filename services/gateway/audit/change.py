"""PURE: what a record has of a change: its name, its objects, and the old and new values of the fields that it changes.

The leader's requests are the same for all surfaces, so changes are described from them. A value gets into a record only
if it is named here. Documents that users write (configurations, templates, metadata) may have secrets, so of them a
record has the names of their keys at most.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gangline.config.layer.lookup import find_named
from gangline.domain.access import GroupAction, Role
from gangline.domain.document import read_document
from gangline.domain.experiment import DEFAULT_PROJECT_ID, Experiment
from gangline.domain.id import experiment_id_of
from gangline.domain.named_kind import DEFAULT_WORKSPACE, WORKSPACE
from gangline.domain.quota import USER_KIND, Quota, user_subject, workspace_subject
from gangline.domain.state import Availability, ExperimentAction, ProjectAction, State
from gangline.errors import GanglineError
from gangline.protocol import wire
from services.common import keys
from services.gateway.mirror.cluster_state import ClusterState

# Characters of one text, entries of one list, and bytes of all changes of a record.
MAX_TEXT = 200
MAX_ENTRIES = 20
MAX_CHANGES_BYTES = 4096

Values = dict[str, Any]


@dataclass(slots=True)
class ChangeNote:
    """Describes one change."""

    action: str
    kind: str
    ids: Sequence[str]  # the objects; each gets a record of its own
    workspace: str = ""
    old: Values = field(default_factory=dict)
    new: Values = field(default_factory=dict)  # as the request has them


def begin(state: ClusterState, request: Any) -> ChangeNote | None:
    """Describes a change before it is sent. Returns None for a request that another record stands for, as the end of a
    session does."""
    rule = DESCRIBED.get(request.DESCRIPTOR.name)
    return rule(state, request) if rule is not None else None


def end(state: ClusterState, note: ChangeNote, answer: Any) -> None:
    """Completes the description by the leader's answer: the ids of new objects, states and labels."""
    field_name = _ANSWERS.get(note.kind)
    if field_name is None or not answer.HasField(field_name):
        return
    record = getattr(answer, field_name)
    if not any(note.ids):
        note.ids = (str(record.id),)
    if "state" in note.new:
        note.new["state"] = str(wire.enum_member(State, record.state))
    if "labels" in note.new:
        note.new["labels"] = list(record.labels)
    if note.action == "experiment.create":
        note.workspace, note.new["name"] = workspace_of(state, record.project_id), record.name


def write_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Returns the changes as JSON: only fields that differ, with cut values."""
    changes: dict[str, Any] = {}
    left = MAX_CHANGES_BYTES
    for name in dict.fromkeys([*old, *new]):
        if name in old and name in new and old[name] == new[name]:
            continue
        change = {side: _cut(values[name]) for side, values in (("old", old), ("new", new)) if name in values}
        left -= len(json.dumps({name: change}))
        if left < 0:
            changes["more_fields"] = {"new": len({*old, *new}) - len(changes)}
            break
        changes[name] = change
    return json.dumps(changes, ensure_ascii=False, separators=(",", ":"))


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        text = value.encode(errors="replace").decode()
        return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."
    if isinstance(value, list | tuple):
        shown = [_cut(each) for each in value[:MAX_ENTRIES]]
        return shown if len(value) <= MAX_ENTRIES else [*shown, f"... {len(value) - MAX_ENTRIES} more"]
    # JSON of strict readers has no NaN.
    return value if isinstance(value, bool | int | None) else str(value)


def workspace_of(state: ClusterState, project_id: int) -> str:
    """Returns the name of the workspace of a project; empty for a project that is not there."""
    if project_id in (0, DEFAULT_PROJECT_ID):
        return DEFAULT_WORKSPACE.name
    project = state.projects.find(keys.project(project_id))
    return _workspace_name(state, project.workspace_id) if project is not None else ""


def _workspace_name(state: ClusterState, workspace_id: int) -> str:
    if workspace_id == DEFAULT_WORKSPACE.id:
        return DEFAULT_WORKSPACE.name
    workspace = state.workspaces.find(keys.workspace(workspace_id))
    return workspace.name if workspace is not None else ""


def _experiment(state: ClusterState, experiment_id: int) -> tuple[Experiment | None, str]:
    """Returns the experiment, and the name of its workspace."""
    experiment = state.experiments.find(keys.experiment(experiment_id)) if experiment_id > 0 else None
    return experiment, workspace_of(state, experiment.home_id) if experiment is not None else ""


def _acting(action: str, shown: Sequence[str] = ("state",)) -> Callable[[ClusterState, Any], ChangeNote]:
    def describe(state: ClusterState, request: Any) -> ChangeNote:
        experiment, workspace = _experiment(state, request.experiment_id)
        note = ChangeNote(action, "experiment", (str(request.experiment_id),), workspace)
        if experiment is not None:
            for name in shown:
                note.old[name] = note.new[name] = str(getattr(experiment, name))
        return note

    return describe


def _archiving(action: str, *, archived: bool) -> Callable[[ClusterState, Any], ChangeNote]:
    def describe(state: ClusterState, request: Any) -> ChangeNote:
        experiment, workspace = _experiment(state, request.experiment_id)
        old = {"archived": experiment.archived} if experiment is not None else {}
        return ChangeNote(action, "experiment", (str(request.experiment_id),), workspace, old, {"archived": archived})

    return describe


def _submit(state: ClusterState, request: Any) -> ChangeNote:
    # The name and the workspace are in the answer; to read the configuration would cost each submit more.
    names = ("code_sha256", "template", "forked_from", "paused")
    new = {name: getattr(request, name) for name in names if getattr(request, name)}
    return ChangeNote("experiment.create", "experiment", ("",), "", {}, new)


def _update_experiment(state: ClusterState, request: Any) -> ChangeNote:
    experiment, workspace = _experiment(state, request.experiment_id)
    note = ChangeNote("experiment.update", "experiment", (str(request.experiment_id),), workspace)
    if request.action:
        action = wire.enum_member(ExperimentAction, request.action)
        note.action = f"experiment.{action.lower()}" if action is not None else note.action
        if experiment is not None:
            note.old["state"] = note.new["state"] = str(experiment.state)
    elif request.HasField("move"):
        note.action = "experiment.move_in_queue"
        side = "behind" if request.move.is_behind else "ahead_of"
        note.new[side] = request.move.anchor_experiment_id
    else:
        asked = next((name for name in ("resources", "texts", "retention") if request.HasField(name)), "")
        verbs = {"resources": "set_resources", "texts": "edit", "retention": "set_retention"}
        if asked:
            note.action = f"experiment.{verbs[asked]}"
            note.new = _asked(getattr(request, asked))
            if experiment is not None:
                note.old = _values_of(experiment, note.new)
    return note


def _asked(change: Any) -> Values:
    """Returns the values that a request sets, by field. Labels are known from the answer."""
    values: Values = {}
    for descriptor, value in change.ListFields():
        name = descriptor.name
        if name in ("add_labels", "remove_labels"):
            values["labels"] = []
        elif name.endswith("_json"):
            values[name.removesuffix("_json")] = _keys_of(value)
        else:
            values[name] = value
    return values


def _keys_of(text: str) -> list[str]:
    """Returns the names of a document's keys, without their values."""
    document = read_document(text) if text else {}
    return sorted(map(str, document)) if isinstance(document, dict) else []


_PLACES = {
    "priority": ("resources", "priority"),
    "weight": ("resources", "weight"),
    "max_slots": ("resources", "max_slots"),
    "description": ("description",),
    "save_experiment_best": ("checkpoint_storage", "save_experiment_best"),
    "save_trial_best": ("checkpoint_storage", "save_trial_best"),
    "save_trial_latest": ("checkpoint_storage", "save_trial_latest"),
    "log_retention_days": ("retention_policy", "log_retention_days"),
    "metric_retention_days": ("retention_policy", "metric_retention_days"),
}


def _values_of(experiment: Experiment, names: Iterable[str]) -> Values:
    """Returns the present values of these fields."""
    values: Values = {}
    document: Any = None
    for name in names:
        if name in _PLACES:
            document = document or read_document(experiment.config_json)
            value = document
            for key in _PLACES[name]:
                value = value.get(key) if isinstance(value, dict) else None
            values[name] = value
        elif name in ("name", "notes"):
            values[name] = getattr(experiment, name)
        elif name == "labels":
            values[name] = list(experiment.labels)
    return values


def _move_experiment(state: ClusterState, request: Any) -> ChangeNote:
    experiment, workspace = _experiment(state, request.experiment_id)
    old = {"project_id": experiment.home_id, "workspace": workspace} if experiment is not None else {}
    new = {"project_id": request.project_id, "workspace": workspace_of(state, request.project_id)}
    return ChangeNote("experiment.move", "experiment", (str(request.experiment_id),), workspace, old, new)


def _continue_experiment(state: ClusterState, request: Any) -> ChangeNote:
    note = _acting("experiment.continue")(state, request)
    if request.overrides_json:
        note.new["overrides"] = _keys_of(request.overrides_json)
    if request.code_sha256:
        note.new["code_sha256"] = request.code_sha256
    return note


def _of_trial(action: str, shown: Sequence[str] = ()) -> Callable[[ClusterState, Any], ChangeNote]:
    def describe(state: ClusterState, request: Any) -> ChangeNote:
        number = experiment_id_of(request.trial_id)
        _, workspace = _experiment(state, number or 0)
        new = {name: getattr(request, name) for name in shown}
        return ChangeNote(action, "trial", (request.trial_id,), workspace, {}, new)

    return describe


def _post_operations(state: ClusterState, request: Any) -> ChangeNote:
    _, workspace = _experiment(state, request.experiment_id)
    new = {"operations": len(request.operations)}
    return ChangeNote("search.post_operations", "experiment", (str(request.experiment_id),), workspace, {}, new)


def _delete_checkpoints(state: ClusterState, request: Any) -> ChangeNote:
    first = state.checkpoints.find(keys.checkpoint(request.checkpoint_ids[0])) if request.checkpoint_ids else None
    _, workspace = _experiment(state, first.experiment_id if first is not None else 0)
    return ChangeNote("checkpoint.delete", "checkpoint", tuple(request.checkpoint_ids), workspace)


def _import_checkpoint(state: ClusterState, request: Any) -> ChangeNote:
    new = {"name": request.checkpoint.imported_as, "files": len(request.checkpoint.file_bytes)}
    return ChangeNote("checkpoint.import", "checkpoint", (request.checkpoint.id,), "", {}, new)


def _update_agent(state: ClusterState, request: Any) -> ChangeNote:
    agent = state.agents.find(keys.agent(request.agent_id))
    new: Values = {"availability": str(wire.enum_member(Availability, request.availability))}
    old: Values = {}
    if request.slot_ids:
        new["slots"] = list(request.slot_ids)
    elif agent is not None:
        old["availability"] = str(agent.availability)
    return ChangeNote("agent.update", "agent", (request.agent_id,), "", old, new)


def _set_quota(state: ClusterState, request: Any) -> ChangeNote:
    note, quota = _of_quota("quota.set", state, request)
    for descriptor, value in request.change.ListFields():
        note.old[descriptor.name] = getattr(quota, descriptor.name)
        # A negative value lifts the limit.
        note.new[descriptor.name] = None if value < 0 else value
    return note


def _remove_quota(state: ClusterState, request: Any) -> ChangeNote:
    note, quota = _of_quota("quota.remove", state, request)
    limits = {"max_slots": quota.max_slots, "slot_hours": quota.slot_hours}
    note.old = {name: value for name, value in limits.items() if value is not None}
    return note


def _of_quota(action: str, state: ClusterState, request: Any) -> tuple[ChangeNote, Quota]:
    """Returns the description of a change, and the present quota, which has no limits if there is none."""
    note = ChangeNote(action, "quota", (f"{request.kind}/{request.name}",))
    subject = user_subject(request.name)
    if request.kind != USER_KIND:
        note.workspace = request.name
        try:
            subject = workspace_subject(find_named(WORKSPACE, request.name, state.workspaces.all()).id)
        except GanglineError:
            return note, Quota()
    return note, state.quotas.find(keys.quota(subject.id)) or Quota()


def _forget_fusion(state: ClusterState, request: Any) -> ChangeNote:
    return ChangeNote("fusion.forget", "fusion", (request.key,))


def _named(kind: str) -> Callable[[ClusterState, Any], ChangeNote]:
    """Describes changes of workspaces, projects and models."""

    def describe(state: ClusterState, request: Any) -> ChangeNote:
        action = wire.enum_member(ProjectAction, request.action)
        number = getattr(request, f"{kind}_id")
        tables: Mapping[str, Any] = {"workspace": state.workspaces, "project": state.projects, "model": state.models}
        record = tables[kind].find(getattr(keys, kind)(number)) if number > 0 else None
        verb = action.lower() if action is not None else "update"
        note = ChangeNote(f"{kind}.{verb}", kind, (str(number) if number else "",))
        if kind == "workspace":
            note.workspace = record.name if record is not None else request.change.name
        elif record is not None:
            note.workspace = _workspace_name(state, record.workspace_id)
        elif kind == "project":
            note.workspace = _workspace_name(state, request.workspace_id)
        else:
            note.workspace = request.change.workspace or DEFAULT_WORKSPACE.name
        if action in (ProjectAction.ARCHIVE, ProjectAction.UNARCHIVE):
            note.old = {"archived": record.archived} if record is not None else {}
            note.new = {"archived": action is ProjectAction.ARCHIVE}
        elif action is ProjectAction.DELETE:
            note.old = {"name": record.name} if record is not None else {}
        else:
            note.new = _asked(request.change)
            note.old = _present(record, note.new) if record is not None else {}
        return note

    return describe


def _present(record: Any, names: Iterable[str]) -> Values:
    """Returns the present values of these fields of a workspace, a project, a model or a version."""
    values: Values = {}
    for name in names:
        source = (
            record if hasattr(record, name) or hasattr(record, f"{name}_json") else getattr(record, "defaults", record)
        )
        if hasattr(source, f"{name}_json"):
            values[name] = _keys_of(getattr(source, f"{name}_json"))
        elif hasattr(source, name):
            value = getattr(source, name)
            values[name] = list(value) if isinstance(value, tuple) else value
    return values


def _update_version(state: ClusterState, request: Any) -> ChangeNote:
    action = wire.enum_member(ProjectAction, request.action)
    model = state.models.find(keys.model(request.model_id)) if request.model_id > 0 else None
    own_id = f"{request.model_id}.{request.number}" if request.number else ""
    record = state.model_versions.find(keys.model_version(own_id)) if own_id else None
    workspace = _workspace_name(state, model.workspace_id) if model is not None else ""
    verb = action.lower() if action is not None else "update"
    note = ChangeNote(f"model_version.{verb}", "model_version", (own_id,), workspace)
    if action is ProjectAction.CREATE:
        note.new = {"checkpoint_id": request.checkpoint_id, "aliases": list(request.aliases), **_asked(request.change)}
    elif action is ProjectAction.EDIT:
        note.new = _asked(request.change)
        note.old = {name: value for name, value in _version_values(record).items() if name in note.new}
    return note


def _version_values(record: Any) -> Values:
    if record is None:
        return {}
    return {"name": record.name, "notes": record.notes, "metadata": _keys_of(record.metadata_json)}


def _set_alias(state: ClusterState, request: Any) -> ChangeNote:
    model = state.models.find(keys.model(request.model_id)) if request.model_id > 0 else None
    workspace = _workspace_name(state, model.workspace_id) if model is not None else ""
    old = {request.alias: model.version_of(request.alias)} if model is not None else {}
    return ChangeNote(
        "model.set_alias", "model", (str(request.model_id),), workspace, old, {request.alias: request.version}
    )


def _set_template(state: ClusterState, request: Any) -> ChangeNote:
    template = state.templates.find(keys.template(request.name))
    old = {"settings": _keys_of(template.config_json)} if template is not None else {}
    new = {"settings": _keys_of(request.config_json)}
    return ChangeNote("template.set", "template", (request.name,), "", old, new)


def _remove_template(state: ClusterState, request: Any) -> ChangeNote:
    return ChangeNote("template.delete", "template", (request.name,))


def _create_user(state: ClusterState, request: Any) -> ChangeNote:
    return ChangeNote("user.create", "user", (request.change.name,), "", {}, _user_values(request.change))


def _update_user(state: ClusterState, request: Any) -> ChangeNote:
    user = state.users.find(keys.user(request.name))
    note = ChangeNote("user.edit", "user", (request.name,), "", {}, _user_values(request.change))
    if user is not None:
        present = {
            "name": user.name,
            "display_name": user.display_name,
            "is_admin": user.is_admin,
            "is_active": not user.is_deactivated,
        }
        note.old = {name: present[name] for name in note.new if name in present}
    if list(note.new) == ["is_active"]:
        note.action = "user.activate" if note.new["is_active"] else "user.deactivate"
    elif list(note.new) == ["password"]:
        note.action = "user.change_password"
    return note


def _user_values(change: Any) -> Values:
    """Returns the values that a request sets. Of a password a record only says that there is one."""
    values: Values = {
        name: getattr(change, name)
        for name in ("name", "display_name", "is_admin", "is_active")
        if change.HasField(name)
    }
    if change.HasField("password"):
        values["password"] = "set" if change.password else "removed"
    return values


def _create_token(state: ClusterState, request: Any) -> ChangeNote:
    new = {"owner": request.owner, "name": request.name, "lifespan_seconds": request.lifespan_seconds}
    return ChangeNote("token.create", "token", ("",), "", {}, new)


def _revoke_token(state: ClusterState, request: Any) -> ChangeNote:
    token = state.tokens.find(keys.token(request.token_id)) if request.token_id > 0 else None
    owner = next(iter(state.users.of(token.user_id)), None) if token is not None else None
    old = {"owner": owner.name if owner is not None else "", "name": token.name} if token is not None else {}
    return ChangeNote("token.revoke", "token", (str(request.token_id),), "", old)


def _update_group(state: ClusterState, request: Any) -> ChangeNote:
    action = str(wire.enum_member(GroupAction, request.action) or "update").lower()
    return ChangeNote(f"group.{action}", "group", (request.name,), new={"users": list(request.users)})


def _assign_role(state: ClusterState, request: Any) -> ChangeNote:
    """The object is the user or the group."""
    kind, name = ("group", request.subject_group) if request.subject_group else ("user", request.subject_user)
    workspace = _workspace_name(state, request.workspace_id) if request.workspace_id else ""
    role = wire.enum_member(Role, request.role)
    return ChangeNote("role.assign", kind, (name,), workspace, new={"role": str(role) if role is not None else None})


DESCRIBED: Mapping[str, Callable[[ClusterState, Any], ChangeNote]] = {
    "ForgetFusionRequest": _forget_fusion,
    "ProfileTrialRequest": _of_trial("trial.profile", ("batches",)),
    "SchedulerServiceAssignRoleRequest": _assign_role,
    "SchedulerServiceArchiveExperimentRequest": _archiving("experiment.archive", archived=True),
    "SchedulerServiceContinueExperimentRequest": _continue_experiment,
    "SchedulerServiceCreateTokenRequest": _create_token,
    "SchedulerServiceCreateUserRequest": _create_user,
    "SchedulerServiceDeleteCheckpointsRequest": _delete_checkpoints,
    "SchedulerServiceDeleteExperimentRequest": _acting("experiment.delete", ("name", "owner")),
    "SchedulerServiceImportCheckpointRequest": _import_checkpoint,
    "SchedulerServiceKillExperimentRequest": _acting("experiment.kill"),
    "SchedulerServiceKillTrialRequest": _of_trial("trial.kill"),
    "SchedulerServiceMoveExperimentRequest": _move_experiment,
    "SchedulerServicePostSearchOperationsRequest": _post_operations,
    "SchedulerServiceRemoveQuotaRequest": _remove_quota,
    "SchedulerServiceRemoveTemplateRequest": _remove_template,
    "SchedulerServiceRevokeTokenRequest": _revoke_token,
    "SchedulerServiceSetModelAliasRequest": _set_alias,
    "SchedulerServiceSetQuotaRequest": _set_quota,
    "SchedulerServiceSetTemplateRequest": _set_template,
    "SchedulerServiceUnarchiveExperimentRequest": _archiving("experiment.unarchive", archived=False),
    "SchedulerServiceUpdateAgentRequest": _update_agent,
    "SchedulerServiceUpdateExperimentRequest": _update_experiment,
    "SchedulerServiceUpdateGroupRequest": _update_group,
    "SchedulerServiceUpdateModelRequest": _named("model"),
    "SchedulerServiceUpdateModelVersionRequest": _update_version,
    "SchedulerServiceUpdateProjectRequest": _named("project"),
    "SchedulerServiceUpdateUserRequest": _update_user,
    "SchedulerServiceUpdateWorkspaceRequest": _named("workspace"),
    "SubmitExperimentRequest": _submit,
}
# By message of the leader's requests that are no rule: the surface's own record stands for them.
UNDESCRIBED: Mapping[str, str] = {
    "SchedulerServiceEndSessionRequest": "a logout, or the login by a one-time key",
}
# By kind, the field of the answer with the changed record.
_ANSWERS = {
    "experiment": "experiment",
    "workspace": "workspace",
    "project": "project",
    "model": "model",
    "model_version": "version",
    "token": "token",
}
