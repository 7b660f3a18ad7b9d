"""PURE: who may order a change, by the leader's own records of roles and groups.

A gateway refuses by its mirror, which may be older, and hides what a user does not see. What the leader refuses here
holds in any case. What a user may not see is refused as an unknown id is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gangline.config.layer.lookup import unknown_id
from gangline.domain.access import (
    CLUSTER_SCOPE,
    Member,
    Role,
    UserGroup,
    WorkspaceRoles,
    assigned_role,
    is_open,
    lacks_role,
    strongest,
)
from gangline.domain.experiment import (
    DEFAULT_WORKSPACE_ID,
    Checkpoint,
    Experiment,
    Project,
    TextChange,
    Trial,
    Workspace,
)
from gangline.domain.id import absent
from gangline.domain.named_kind import DEFAULT_WORKSPACE, WORKSPACE
from gangline.domain.registry import Model
from gangline.domain.user import CLUSTER_NAME, User
from gangline.errors import ErrorKind, GanglineError
from services.scheduler.state.records import Records, StateChange


def role_in(records: Records, user: str, workspace_id: int) -> Role | None:
    """Returns the role of a user in a workspace; None if the user does not see it."""
    if _is_unlimited(records, user):
        return Role.ADMIN
    member = _member(records, user)
    workspace = records.find(Workspace, workspace_id) or DEFAULT_WORKSPACE
    found = (
        assigned_role(member, None, records.find(WorkspaceRoles, CLUSTER_SCOPE)),
        assigned_role(member, workspace, records.find(WorkspaceRoles, workspace_id)),
    )
    return strongest(role for role in found if role is not None)


def role_for_cluster(records: Records, user: str) -> Role | None:
    """Returns the role of a user in all workspaces; None if the user has at most roles in some of them."""
    if _is_unlimited(records, user):
        return Role.ADMIN
    return assigned_role(_member(records, user), None, records.find(WorkspaceRoles, CLUSTER_SCOPE))


def may_somewhere(records: Records, user: str, role: Role) -> bool:
    """Returns whether the user has this role for the cluster, or in some workspace."""
    present = role_for_cluster(records, user)
    if present is not None and present.includes(role):
        return True
    found = (role_in(records, user, workspace.id) for workspace in records.all_of(Workspace))
    return any(each is not None and each.includes(role) for each in found)


def check_somewhere(records: Records, user: str, role: Role, action: str) -> None:
    """Raises GanglineError `auth.no_role`."""
    if not may_somewhere(records, user, role):
        raise lacks_role(user, action, role, "")


def check_administrator(records: Records, user: str, action: str) -> None:
    """Admits administrators of the cluster. Raises GanglineError `auth.not_admin`."""
    if not _is_unlimited(records, user):
        raise GanglineError(
            "auth.not_admin",
            f"{user} is no administrator, and only those may {action}; ask one of them",
            ErrorKind.FORBIDDEN,
        )


def workspace_id_of(records: Records, experiment: Experiment) -> int:
    project = records.find(Project, experiment.home_id)
    return project.workspace_id if project is not None else DEFAULT_WORKSPACE_ID


def changed(
    user: str, experiment_id: int, action: str, transition: Callable[[Records], StateChange]
) -> Callable[[Records], StateChange]:
    """Returns the transition with a check that this user may change the experiment. action: such as "delete". An
    experiment that does not exist is left to the transition."""
    return _checked(check_experiment_change, user, experiment_id, action, transition)


def operated(
    user: str, experiment_id: int, action: str, transition: Callable[[Records], StateChange]
) -> Callable[[Records], StateChange]:
    """Returns the transition with a check that this user may operate the experiment. action: such as "kill". An
    experiment that does not exist is left to the transition."""
    return _checked(check_operation, user, experiment_id, action, transition)


def _checked(
    check: Callable[[Records, str, Experiment, str], None],
    user: str,
    experiment_id: int,
    action: str,
    transition: Callable[[Records], StateChange],
) -> Callable[[Records], StateChange]:
    def run(records: Records) -> StateChange:
        experiment = records.find(Experiment, experiment_id)
        if experiment is not None:
            check(records, user, experiment, f"{action} experiment {experiment_id}")
        return transition(records)

    return run


def check_trial_operation(records: Records, user: str, trial_id: str, action: str) -> None:
    """Raises as `check_operation` does. A trial that does not exist passes."""
    trial = records.find(Trial, trial_id)
    experiment = records.find(Experiment, trial.experiment_id) if trial is not None else None
    if experiment is not None:
        if not sees_experiment(records, user, experiment.id):
            raise absent("trial", trial_id)
        check_operation(records, user, experiment, f"{action} trial {trial_id}")


def check_operation(records: Records, user: str, experiment: Experiment, action: str) -> None:
    """Admits who may pause, end, move, rename and prioritise an experiment: who may change it, and every editor of the
    workspace as long as the cluster is open (`is_open`). Raises as `check_experiment_change` does."""
    role = role_in(records, user, workspace_id_of(records, experiment))
    if role is not Role.EDITOR or not is_open(records.find(WorkspaceRoles, CLUSTER_SCOPE)):
        check_experiment_change(records, user, experiment, action)


def check_experiment_change(records: Records, user: str, experiment: Experiment, action: str) -> None:
    """Admits the owner who is an editor, and admins of the workspace. Raises GanglineError `experiment.not_found`,
    `auth.not_owner`, `auth.no_role`."""
    workspace_id = workspace_id_of(records, experiment)
    role = role_in(records, user, workspace_id)
    if role is None:
        raise absent("experiment", experiment.id)
    check_owned(records, user, experiment.owner, workspace_id, action)


def check_secrets(records: Records, user: str, experiment: Experiment, action: str) -> None:
    """Admits who may run other programs with the secrets of an experiment's configuration, and as its owner: the owner
    and administrators of the cluster. Raises GanglineError `auth.not_owner`."""
    if user != experiment.owner and not _is_unlimited(records, user):
        raise not_owner(user, experiment.owner, action)


def check_owned(records: Records, user: str, owner: str, workspace_id: int, action: str) -> None:
    """Admits the owner of what is in a workspace, as long as the owner is an editor there, and the admins of the
    workspace. Raises GanglineError `auth.not_owner`, `auth.no_role`."""
    role = role_in(records, user, workspace_id)
    if role is Role.ADMIN:
        return
    if user != owner:
        raise not_owner(user, owner, action)
    if role is not Role.EDITOR:
        raise lacks_role(user, action, Role.EDITOR, _name_of(records, workspace_id))


def check_texts(records: Records, user: str, experiment: Experiment, change: TextChange) -> None:
    """Admits every editor of the workspace for notes and labels, which a project shares, and for name and description
    those whom `check_operation` admits. Raises as it does."""
    action = f"change the texts of experiment {experiment.id}"
    if change.name is not None or change.description is not None:
        check_operation(records, user, experiment, action)
        return
    workspace_id = workspace_id_of(records, experiment)
    if role_in(records, user, workspace_id) is None:
        raise absent("experiment", experiment.id)
    check_role(records, user, Role.EDITOR, workspace_id, action)


def check_role(records: Records, user: str, role: Role, workspace_id: int, action: str) -> None:
    """Raises GanglineError `workspace.not_found`, `auth.no_role`."""
    present = role_in(records, user, workspace_id)
    if present is None:
        raise unknown_id(WORKSPACE, workspace_id)
    if not present.includes(role):
        raise lacks_role(user, action, role, _name_of(records, workspace_id))


def seen_workspaces(records: Records, user: str) -> Iterable[Workspace]:
    """Returns the workspaces that the user sees, among which a name is looked up."""
    workspaces = records.all_of(Workspace)
    if role_for_cluster(records, user) is not None:
        return workspaces
    return [workspace for workspace in workspaces if role_in(records, user, workspace.id) is not None]


def sees_experiment(records: Records, user: str, experiment_id: int) -> bool:
    if role_for_cluster(records, user) is not None:
        return True
    experiment = records.find(Experiment, experiment_id)
    return experiment is not None and role_in(records, user, workspace_id_of(records, experiment)) is not None


def sees_checkpoint(records: Records, user: str, checkpoint: Checkpoint) -> bool:
    """Returns whether the user sees the experiment of the checkpoint, has imported it, has a role for the cluster, or
    sees a model of which it is a version."""
    if role_for_cluster(records, user) is not None or (not checkpoint.trial_id and checkpoint.owner == user):
        return True
    if sees_experiment(records, user, checkpoint.experiment_id):
        return True
    versions = records.versions_of_checkpoint(checkpoint.id)
    models = (records.find(Model, version.model_id) for version in versions)
    return any(model is not None and role_in(records, user, model.workspace_id) is not None for model in models)


def check_deletion(records: Records, user: str, checkpoint_ids: Iterable[str]) -> None:
    """Admits who may change the experiment of each checkpoint, and who has imported it. Those that do not exist pass.
    Raises GanglineError `checkpoint.not_found`, `auth.not_owner`, `auth.no_role`."""
    for checkpoint_id in checkpoint_ids:
        checkpoint = records.find(Checkpoint, checkpoint_id)
        if checkpoint is None:
            continue
        if not sees_checkpoint(records, user, checkpoint):
            raise absent("checkpoint", checkpoint_id)
        action = f"delete checkpoint {checkpoint_id}"
        experiment = records.find(Experiment, checkpoint.experiment_id)
        if experiment is not None:
            check_owned(records, user, experiment.owner, workspace_id_of(records, experiment), action)
        elif not checkpoint.trial_id and user != checkpoint.owner and role_for_cluster(records, user) is not Role.ADMIN:
            raise not_owner(user, checkpoint.owner, action)


def not_owner(user: str, owner: str, action: str) -> GanglineError:
    return GanglineError(
        "auth.not_owner",
        f"{user} may not {action}: only {owner or 'the cluster'} and administrators may; ask one of them",
        ErrorKind.FORBIDDEN,
    )


def _is_unlimited(records: Records, user: str) -> bool:
    """Gateways of an earlier version name no user for some changes."""
    if user in ("", CLUSTER_NAME):
        return True
    record = records.find(User, user)
    return record is not None and record.is_admin


def _member(records: Records, user: str) -> Member:
    return Member.of(user, records.find(User, user), records.all_of(UserGroup))


def _name_of(records: Records, workspace_id: int) -> str:
    return (records.find(Workspace, workspace_id) or DEFAULT_WORKSPACE).name
