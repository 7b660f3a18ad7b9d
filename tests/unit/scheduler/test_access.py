"""Groups, roles, and who may order what by the leader's records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangline.domain.access import (
    EVERYONE,
    MAX_ASSIGNMENTS,
    MAX_GROUPS,
    MAX_MEMBERS,
    GroupAction,
    Role,
    RoleAssignment,
    UserGroup,
    WorkspaceRoles,
)
from gangline.domain.experiment import Checkpoint, Experiment, Project, TextChange, Trial, Workspace
from gangline.domain.named_kind import DEFAULT_PROJECT, DEFAULT_WORKSPACE, MODEL, PROJECT, TEMPLATE, WORKSPACE
from gangline.domain.registry import Model, ModelVersion
from gangline.domain.state import ProjectAction
from gangline.domain.user import User, UserChange
from gangline.errors import GanglineError
from gangline.v1.scheduler_pb2 import SchedulerServiceUpdateExperimentRequest
from gangline.v1.types_pb2 import EXPERIMENT_ACTION_PAUSE
from services.scheduler.service.scheduler_service import _checked
from services.scheduler.state.records import SchedulerState, StateChange
from services.scheduler.transition import rights
from services.scheduler.transition.account.access_change import RoleRequest, change_group, change_role
from services.scheduler.transition.account.user_change import update_user
from services.scheduler.transition.project.named_change import change_named
from services.scheduler.transition.project.project_move import home_of, move_to_project
from services.scheduler.transition.project.rule import Caller, NamedChange

ROOT = Caller("root", True, "r")
USERS = (
    User("root", "", is_admin=True, id=1),
    User("ann", "", id=2),
    User("bob", "", id=3),
    User("eve", "", id=4),
)
CLOSED = WorkspaceRoles(0)
LAB = Workspace(2, "lab", owner="ann")
EXPERIMENT = Experiment(7, "digits", "bob", "{}", "a" * 64, project_id=5)
TRIAL = Trial("7.1", 7, 1)
CHECKPOINT = Checkpoint("c1", "7.1", 7, 10, "file:///s/checkpoints/c1")


def _state(*more: object, is_closed: bool = True) -> SchedulerState:
    records = (
        *USERS, DEFAULT_WORKSPACE, DEFAULT_PROJECT, LAB, Project(5, 2, "vision", owner="ann"), EXPERIMENT, TRIAL,
        CHECKPOINT, *((CLOSED,) if is_closed else ()), *more,
    )  # fmt: skip
    return SchedulerState.of(records, 1)


def _roles(**by_name: Role) -> WorkspaceRoles:
    ids = {user.name: user.id for user in USERS}
    given = (
        RoleAssignment(role, user_id=ids[name]) if name in ids else RoleAssignment(role, group=name)
        for name, role in by_name.items()
    )
    return WorkspaceRoles(2, tuple(given))


def _apply(state: SchedulerState, change: StateChange) -> SchedulerState:
    state.apply(change, state.revision + 1)
    return state


def _code(call: object, *arguments: object, **more: object) -> str:
    with pytest.raises(GanglineError) as caught:
        call(*arguments, **more)  # type: ignore[operator]
    return caught.value.code


def test_a_cluster_without_changed_roles_has_everyone_as_editor() -> None:
    state = _state(is_closed=False)
    assert {name: rights.role_in(state, name, 2) for name in ("root", "ann", "bob", "stranger", "cluster")} == {
        "root": Role.ADMIN,
        "ann": Role.ADMIN,
        "bob": Role.EDITOR,
        "stranger": Role.EDITOR,
        "cluster": Role.ADMIN,
    }
    # The owner of the lab has no more rights elsewhere than everyone.
    assert rights.role_in(state, "ann", 1) is Role.EDITOR


def test_a_closed_cluster_has_the_roles_that_were_given() -> None:
    state = _state(UserGroup("team", (3,)), _roles(team=Role.VIEWER, ann=Role.EDITOR))
    found = {name: rights.role_in(state, name, 2) for name in ("root", "ann", "bob", "eve", "stranger")}
    assert found == {"root": Role.ADMIN, "ann": Role.EDITOR, "bob": Role.VIEWER, "eve": None, "stranger": None}
    assert [rights.role_in(state, "bob", 1), rights.role_for_cluster(state, "bob")] == [None, None]
    state = _state(_roles(everyone=Role.VIEWER, bob=Role.ADMIN))
    assert [rights.role_in(state, name, 2) for name in ("bob", "eve")] == [Role.ADMIN, Role.VIEWER]


def test_the_first_change_of_roles_keeps_what_held_before() -> None:
    state = _state(is_closed=False)
    asked = RoleRequest(ROOT, Role.VIEWER, user="bob", workspace_id=2)
    _apply(state, change_role(state, asked))
    roles = state.find(WorkspaceRoles, 2)
    assert roles is not None
    assert set(roles.assignments) == {RoleAssignment(Role.ADMIN, 2), RoleAssignment(Role.VIEWER, 3)}
    # The same request again changes nothing, another role of the same user takes the place of the first.
    assert not change_role(state, replace(asked, role=Role.ADMIN))
    _apply(state, change_role(state, RoleRequest(replace(ROOT, request_id="s"), Role.EDITOR, "bob", workspace_id=2)))
    assert rights.role_in(state, "bob", 2) is Role.EDITOR


def test_closing_the_cluster_takes_nothing_from_administrators() -> None:
    state = _state(is_closed=False)
    _apply(state, change_role(state, RoleRequest(ROOT, None, group=EVERYONE)))
    assert rights.role_in(state, "bob", 1) is None
    assert rights.role_in(state, "root", 1) is Role.ADMIN
    assert _code(change_role, state, RoleRequest(replace(ROOT, request_id="s"), None, user="root")) == "role.not_found"


def test_roles_are_changed_by_admins_of_their_place_only() -> None:
    state = _state(_roles(ann=Role.ADMIN, bob=Role.EDITOR))
    ann, bob, eve = (Caller(name, False, "s") for name in ("ann", "bob", "eve"))
    assert change_role(state, RoleRequest(ann, Role.EDITOR, user="eve", workspace_id=2))
    codes = {
        _code(change_role, state, RoleRequest(ann, Role.EDITOR, user="eve")),
        _code(change_role, state, RoleRequest(bob, Role.EDITOR, user="eve", workspace_id=2)),
        _code(change_role, state, RoleRequest(eve, Role.EDITOR, user="eve", workspace_id=2)),
        _code(change_role, state, RoleRequest(ROOT, Role.EDITOR, user="eve", workspace_id=9)),
    }
    assert codes == {"auth.not_admin", "auth.not_owner", "workspace.not_found"}
    assert _code(change_role, state, RoleRequest(ROOT, Role.EDITOR)) == "role.subject"
    assert _code(change_role, state, RoleRequest(ROOT, Role.EDITOR, user="eve", group="team")) == "role.subject"
    assert _code(change_role, state, RoleRequest(ROOT, Role.EDITOR, user="nobody")) == "user.not_found"
    assert _code(change_role, state, RoleRequest(ROOT, Role.EDITOR, group="nobody")) == "group.not_found"


def test_the_number_of_roles_is_bounded() -> None:
    many = WorkspaceRoles(2, tuple(RoleAssignment(Role.VIEWER, number) for number in range(10, 10 + MAX_ASSIGNMENTS)))
    assert _code(change_role, _state(many), RoleRequest(ROOT, Role.EDITOR, "eve", workspace_id=2)) == "role.too_many"


def test_groups_are_made_changed_and_deleted() -> None:
    state = _state()
    _apply(state, change_group(state, GroupAction.CREATE, "team", ["bob"], ROOT, now=5.0))
    assert not change_group(state, GroupAction.CREATE, "team", ["bob"], ROOT, now=5.0)
    second, third, fourth = (replace(ROOT, request_id=name) for name in "stu")
    _apply(state, change_group(state, GroupAction.ADD, "team", ["eve", "ann"], second, now=6.0))
    _apply(state, change_group(state, GroupAction.REMOVE, "team", ["bob"], third, now=7.0))
    assert state.find(UserGroup, "team") == UserGroup("team", (2, 4), 5.0, ("r", "s", "t"))
    _apply(state, change_role(state, RoleRequest(fourth, Role.VIEWER, group="team", workspace_id=2)))
    fifth = replace(ROOT, request_id="v")
    assert _code(change_group, state, GroupAction.DELETE, "team", [], fifth, now=8.0) == "group.in_use"
    _apply(state, change_role(state, RoleRequest(replace(ROOT, request_id="w"), None, group="team", workspace_id=2)))
    _apply(state, change_group(state, GroupAction.DELETE, "team", [], fifth, now=8.0))
    assert state.find(UserGroup, "team") is None
    assert not change_group(state, GroupAction.DELETE, "team", [], fifth, now=8.0)


def test_what_groups_refuse() -> None:
    state = _state(UserGroup("team", tuple(range(10, 10 + MAX_MEMBERS))))
    ann = Caller("ann", False, "s")
    for action, name, users, caller, code in [
        (GroupAction.CREATE, "x", [], ann, "auth.not_admin"),
        (GroupAction.CREATE, "Team", [], ROOT, "group.exists"),
        (GroupAction.CREATE, "a b", [], ROOT, "group.name"),
        (GroupAction.CREATE, "Everyone", [], ROOT, "group.name"),
        (GroupAction.ADD, EVERYONE, ["bob"], ROOT, "group.built_in"),
        (GroupAction.DELETE, "nobody", [], ROOT, "group.not_found"),
        (GroupAction.ADD, "team", ["nobody"], ROOT, "user.not_found"),
        (GroupAction.ADD, "team", ["bob"], ROOT, "group.too_many"),
    ]:
        assert _code(change_group, state, action, name, users, caller, now=1.0) == code
    full = _state(*(UserGroup(f"g{number}") for number in range(MAX_GROUPS)))
    assert _code(change_group, full, GroupAction.CREATE, "more", [], ROOT, now=1.0) == "group.too_many"


@pytest.mark.parametrize(
    ("roles", "user", "code"),
    [
        ({"bob": Role.EDITOR}, "bob", ""),
        ({"bob": Role.VIEWER}, "bob", "auth.no_role"),
        ({"eve": Role.ADMIN}, "eve", ""),
        ({"eve": Role.EDITOR}, "eve", "auth.not_owner"),
        ({"eve": Role.VIEWER}, "eve", "auth.not_owner"),
        ({}, "eve", "experiment.not_found"),
        ({}, "bob", "experiment.not_found"),
        ({}, "root", ""),
        ({}, "cluster", ""),
    ],
)
def test_orders_are_for_owners_who_edit_and_for_admins(roles: dict[str, Role], user: str, code: str) -> None:
    state = _state(_roles(**roles))
    orders = [check(user, 7, "end", lambda _: StateChange()) for check in (rights.changed, rights.operated)]
    for order in orders:
        if code:
            assert _code(order, state) == code
        else:
            order(state)
    if code:
        expected = code.replace("experiment", "trial") if code == "experiment.not_found" else code
        assert _code(rights.check_trial_operation, state, user, "7.1", "kill") == expected
    else:
        rights.check_trial_operation(state, user, "7.1", "kill")


def test_editors_operate_the_work_of_others_until_the_roles_for_the_cluster_change() -> None:
    """As in versions without roles; deletion was for owners there too."""
    state = _state(Project(6, 2, "speech", owner="ann"), is_closed=False)
    operate, change = (check("eve", 7, "end", lambda _: StateChange()) for check in (rights.operated, rights.changed))
    texts = TextChange(name="n")

    def use_rights() -> None:
        operate(state)
        rights.check_trial_operation(state, "eve", "7.1", "kill")
        rights.check_texts(state, "eve", EXPERIMENT, texts)
        assert move_to_project(state, "eve", 7, 6)

    use_rights()
    assert _code(change, state) == "auth.not_owner"
    # Roles of single workspaces leave the cluster open.
    _apply(state, change_role(state, RoleRequest(ROOT, Role.VIEWER, user="eve", workspace_id=2)))
    use_rights()
    # A request that leaves the assignments as they are closes it all the same.
    asked = RoleRequest(replace(ROOT, request_id="close"), Role.EDITOR, group=EVERYONE)
    _apply(state, change_role(state, asked))
    closed = state.find(WorkspaceRoles, 0)
    assert closed is not None
    assert closed.assignments == (RoleAssignment(Role.EDITOR, group=EVERYONE),)
    assert rights.role_in(state, "eve", 2) is Role.EDITOR
    assert _code(operate, state) == "auth.not_owner"
    assert _code(rights.check_trial_operation, state, "eve", "7.1", "kill") == "auth.not_owner"
    assert _code(rights.check_texts, state, "eve", EXPERIMENT, texts) == "auth.not_owner"
    assert _code(move_to_project, state, "eve", 7, 6) == "auth.not_owner"


def test_nobody_becomes_admin_of_others_work_by_moving_it() -> None:
    """The creator of a workspace is its admin."""
    state = _state(Workspace(3, "own", owner="eve"), Project(6, 3, "inside", owner="eve"), is_closed=False)
    assert rights.role_in(state, "eve", 3) is Role.ADMIN
    assert _code(move_to_project, state, "eve", 7, 6) == "auth.not_owner"
    assert move_to_project(state, "root", 7, 6)
    assert move_to_project(state, "bob", 7, 6)


def test_other_programs_run_with_an_owners_secrets_by_order_of_the_owner_alone() -> None:
    state = _state(_roles(bob=Role.EDITOR, ann=Role.ADMIN))
    for user in ("bob", "root"):
        rights.check_secrets(state, user, EXPERIMENT, "continue")
    assert _code(rights.check_secrets, state, "ann", EXPERIMENT, "continue") == "auth.not_owner"


def test_a_former_administrator_is_none_whatever_an_old_gateway_says() -> None:
    state = _state(Model(3, "m", owner="bob", workspace_id=2))
    former = Caller("eve", True, "n")
    for kind, key in ((WORKSPACE, 2), (PROJECT, 5), (MODEL, 3)):
        asked = NamedChange(kind, ProjectAction.ARCHIVE, former, (), 1.0, key=key)
        assert _code(change_named, state, asked) == f"{kind.noun}.not_found"
    asked = NamedChange(WORKSPACE, ProjectAction.CREATE, former, (), 1.0, wanted={"name": "more"})
    assert _code(change_named, state, asked) == "auth.no_role"


def test_the_request_of_a_deletion_shows_no_other_record() -> None:
    state = _state(_roles(bob=Role.EDITOR), Project(6, 2, "own", owner="bob"))
    bob = Caller("bob", False, "gone")
    _apply(state, change_named(state, NamedChange(PROJECT, ProjectAction.DELETE, bob, (), 1.0, key=6)))
    edit = NamedChange(WORKSPACE, ProjectAction.EDIT, bob, (), 1.0, key=1, wanted={"name": "x"})
    assert _code(change_named, state, edit) == "workspace.default"
    edit = NamedChange(PROJECT, ProjectAction.ARCHIVE, bob, (), 1.0, key=5)
    assert _code(change_named, state, edit) == "auth.not_owner"
    # The same deletion again changes nothing.
    assert not change_named(state, NamedChange(PROJECT, ProjectAction.DELETE, bob, (), 1.0, key=6))


def test_retention_is_no_operation() -> None:
    """Other changes of an experiment are, in an open cluster."""
    state = _state(is_closed=False)
    retention = SchedulerServiceUpdateExperimentRequest(experiment_id=7, user="eve")
    retention.retention.SetInParent()
    assert _code(_checked(retention, lambda _: StateChange()), state) == "auth.not_owner"
    resources = SchedulerServiceUpdateExperimentRequest(experiment_id=7, user="eve")
    resources.resources.SetInParent()
    pause = SchedulerServiceUpdateExperimentRequest(experiment_id=7, user="eve", action=EXPERIMENT_ACTION_PAUSE)
    for request in (resources, pause):
        assert not _checked(request, lambda _: StateChange())(state)


def test_an_unseen_experiment_is_refused_as_an_unknown_one() -> None:
    state = _state()
    with pytest.raises(GanglineError) as hidden:
        rights.operated("eve", 7, "kill", lambda _: StateChange())(state)
    with pytest.raises(GanglineError) as unknown:
        move_to_project(state, "eve", 8, 1)
    assert hidden.value.message == unknown.value.message.replace("8", "7")


def test_editors_share_notes_and_labels_alone() -> None:
    state = _state(_roles(eve=Role.EDITOR, ann=Role.VIEWER))
    rights.check_texts(state, "eve", EXPERIMENT, TextChange(notes="n", add_labels=("a",)))
    assert _code(rights.check_texts, state, "eve", EXPERIMENT, TextChange(name="n")) == "auth.not_owner"
    assert _code(rights.check_texts, state, "ann", EXPERIMENT, TextChange(notes="n")) == "auth.no_role"
    assert _code(rights.check_texts, state, "stranger", EXPERIMENT, TextChange(notes="n")) == "experiment.not_found"


def test_checkpoints_are_seen_with_their_experiment_or_with_a_model() -> None:
    state = _state(_roles(bob=Role.EDITOR))
    assert [rights.sees_checkpoint(state, name, CHECKPOINT) for name in ("bob", "eve", "root")] == [True, False, True]
    imported = Checkpoint("c2", "", 0, 1, "file:///s/checkpoints/c2", owner="eve")
    assert [rights.sees_checkpoint(state, name, imported) for name in ("bob", "eve", "root")] == [False, True, True]
    shared = _state(
        Model(3, "m", owner="bob", workspace_id=1), ModelVersion("3.1", 3, 1, "c1"),
        WorkspaceRoles(1, (RoleAssignment(Role.VIEWER, 4),)),
    )  # fmt: skip
    assert rights.sees_checkpoint(shared, "eve", CHECKPOINT)
    assert _code(rights.check_deletion, shared, "eve", ["c1"]) == "auth.not_owner"
    assert _code(rights.check_deletion, state, "eve", ["c1"]) == "checkpoint.not_found"


def test_experiments_go_only_where_the_user_edits() -> None:
    state = _state(_roles(bob=Role.EDITOR, ann=Role.VIEWER))
    assert home_of(state, "bob", "lab", "vision").id == 5
    assert _code(home_of, state, "ann", "lab", "vision") == "auth.no_role"
    assert _code(home_of, state, "eve", "lab", "vision") == "workspace.not_found"
    assert _code(home_of, state, "eve", "lab", "no such") == "workspace.not_found"
    assert _code(home_of, state, "bob", "", "") == "workspace.not_found"
    assert _code(move_to_project, state, "bob", 7, 1) == "project.not_found"


def _change(state: SchedulerState, user: str, kind: object, action: ProjectAction, **more: object) -> StateChange:
    asked = NamedChange(kind, action, Caller(user, False, "n"), (), 1.0, **more)  # type: ignore[arg-type]
    return change_named(state, asked)


def test_who_creates_and_changes_what_a_workspace_has() -> None:
    create, edit = ProjectAction.CREATE, ProjectAction.EDIT
    state = _state(_roles(bob=Role.EDITOR, eve=Role.VIEWER), Model(3, "m", owner="bob", workspace_id=2))
    new, model = {"wanted": {"name": "x"}}, {"wanted": {"name": "x", "workspace_id": "lab"}}
    assert _change(state, "bob", PROJECT, create, parent_id=2, **new)
    assert _change(state, "bob", MODEL, create, **model)
    assert _change(state, "bob", MODEL, edit, key=3, **new)
    template = {"key": "t", "wanted": {"name": "t", "config_json": '{"max_restarts": 1}'}}
    assert _change(state, "bob", TEMPLATE, create, **template)
    refused: list[tuple[str, Any, ProjectAction, dict[str, Any], str]] = [
        ("eve", PROJECT, create, {"parent_id": 2, **new}, "auth.no_role"),
        ("stranger", PROJECT, create, {"parent_id": 2, **new}, "workspace.not_found"),
        ("eve", MODEL, create, model, "auth.no_role"),
        ("stranger", MODEL, create, model, "workspace.not_found"),
        ("eve", MODEL, edit, {"key": 3, **new}, "auth.not_owner"),
        ("stranger", MODEL, edit, {"key": 3, **new}, "model.not_found"),
        ("bob", MODEL, edit, {"key": 3, "wanted": {"workspace_id": "Uncategorized"}}, "workspace.not_found"),
        ("bob", PROJECT, edit, {"key": 5, **new}, "auth.not_owner"),
        ("bob", WORKSPACE, create, new, "auth.no_role"),
        ("bob", WORKSPACE, edit, {"key": 2, **new}, "auth.not_owner"),
        ("ann", WORKSPACE, edit, {"key": 2, **new}, "workspace.not_found"),
        ("eve", TEMPLATE, create, template, "auth.no_role"),
    ]
    for user, kind, action, more, code in refused:
        assert _code(_change, state, user, kind, action, **more) == code, (user, kind, action, more)


def test_the_creator_of_a_workspace_is_its_admin_and_its_roles_go_with_it() -> None:
    state = _state(WorkspaceRoles(0, (RoleAssignment(Role.EDITOR, 3),)), is_closed=False)
    _apply(state, _change(state, "bob", WORKSPACE, ProjectAction.CREATE, wanted={"name": "own"}))
    (own,) = (workspace for workspace in state.all_of(Workspace) if workspace.name == "own")
    assert rights.role_in(state, "bob", own.id) is Role.ADMIN
    bob = Caller("bob", False, "s")
    _apply(state, change_role(state, RoleRequest(bob, Role.VIEWER, user="eve", workspace_id=own.id)))
    assert [rights.role_in(state, name, own.id) for name in ("bob", "eve")] == [Role.ADMIN, Role.VIEWER]
    asked = NamedChange(WORKSPACE, ProjectAction.DELETE, replace(bob, request_id="t"), (), 1.0, key=own.id)
    _apply(state, change_named(state, asked))
    assert state.find(WorkspaceRoles, own.id) is None


def test_the_last_active_administrator_stays_one() -> None:
    state = _state()
    cluster = Caller("cluster", True, "s")
    assert _code(update_user, state, "root", UserChange(is_admin=False), cluster) == "user.fixed"
    assert _code(update_user, state, "root", UserChange(is_active=False), cluster) == "user.fixed"
    assert update_user(state, "bob", UserChange(is_active=False), cluster)
    more = _state(User("ray", "", is_admin=True, id=9))
    assert update_user(more, "root", UserChange(is_admin=False), cluster)
