"""Transitions of workspaces, projects and templates."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from gangline.config.layer.secret_name import MASK
from gangline.domain.experiment import (
    Experiment,
    Project,
    ProjectChange,
    ProjectCounter,
    ProjectDefaults,
    Template,
    Workspace,
)
from gangline.domain.named_kind import PROJECT, TEMPLATE, WORKSPACE, NamedKind
from gangline.domain.state import DeletionStage, ProjectAction
from gangline.errors import ErrorKind, GanglineError
from services.scheduler.state.records import SINGLETON, Record, SchedulerState, StateChange
from services.scheduler.state.rules import Rules
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.project.kind_rule import MAX_HELD_DELETED
from services.scheduler.transition.project.named_change import change_named, record_of_request
from services.scheduler.transition.project.project_move import move_to_project
from services.scheduler.transition.project.rule import MAX_REMOVALS, MAX_REQUESTS, Caller, NamedChange
from services.scheduler.transition.submit_check import AdmittedSubmission, check_repeated, submit_experiment
from tests.support.scheduler import config_json

ANN = Caller("ann", False, "r1")
BOB = Caller("bob", False, "r2")
ADMIN = Caller("root", True, "r3")
POOLS = frozenset({"default", "gpu"})
BASE: tuple[Record, ...] = (
    Workspace(1, "Uncategorized"),
    Project(1, 1, "Uncategorized"),
    Workspace(2, "lab", "ann"),
    Project(2, 2, "vision", owner="ann"),
    Template("base", "ann", '{"labels": ["a"]}'),
    ProjectCounter(3, 3),
)
CREATE, EDIT, ARCHIVE, UNARCHIVE, DELETE = (
    ProjectAction.CREATE, ProjectAction.EDIT, ProjectAction.ARCHIVE, ProjectAction.UNARCHIVE, ProjectAction.DELETE,
)  # fmt: skip
NOTHING = ProjectChange()
Act = Callable[[], StateChange]


def _state(*more: Record) -> SchedulerState:
    return SchedulerState.of((*BASE, *more))


def _experiment(experiment_id: int, project_id: int = 2, **fields: Any) -> Experiment:
    return Experiment(experiment_id, "x", "ann", config_json(), "0" * 64, project_id=project_id, **fields)


def _apply(state: SchedulerState, change: StateChange) -> SchedulerState:
    state.apply(change, state.revision + 1)
    return state


def _change(state: SchedulerState, kind: NamedKind[Any], action: ProjectAction, caller: Caller, *, now: float = 9.0,
            **more: Any) -> StateChange:  # fmt: skip
    return change_named(state, NamedChange(kind, action, caller, POOLS, now, **more))


def _workspace(state: SchedulerState, action: ProjectAction, caller: Caller = ANN, change: ProjectChange = NOTHING,
               workspace_id: int = 2) -> StateChange:  # fmt: skip
    return _change(state, WORKSPACE, action, caller, key=workspace_id, wanted=_wanted(change))


def _project(state: SchedulerState, action: ProjectAction, caller: Caller = ANN, change: ProjectChange = NOTHING,
             project_id: int = 2) -> StateChange:  # fmt: skip
    return _change(state, PROJECT, action, caller, key=project_id, wanted=_wanted(change))


def _create(state: SchedulerState, name: str, caller: Caller = ANN, **defaults: str) -> StateChange:
    return _workspace(state, CREATE, caller, ProjectChange(name, **defaults), 0)


def _create_project(state: SchedulerState, name: str, caller: Caller = ANN, workspace_id: int = 2) -> StateChange:
    return _change(state, PROJECT, CREATE, caller, wanted={"name": name}, parent_id=workspace_id)


def _set_template(state: SchedulerState, name: str, config_json: str, caller: Caller, now: float) -> StateChange:
    wanted = {"name": name, "config_json": config_json}
    return _change(state, TEMPLATE, CREATE, caller, key=name, wanted=wanted, now=now)


def _remove_template(state: SchedulerState, name: str, caller: Caller) -> StateChange:
    return _change(state, TEMPLATE, DELETE, caller, key=name)


def _wanted(change: ProjectChange) -> dict[str, str]:
    return {name: value for name, value in asdict(change).items() if value is not None}


def test_a_workspace_is_created_with_its_defaults() -> None:
    change = _create(_state(), "prod", resource_pool="gpu", checkpoint_storage_json='{"save_trial_best": 2}',
                     template="base")  # fmt: skip
    assert set(change.puts) == {
        ProjectCounter(4, 3),
        Workspace(3, "prod", "ann", 9.0, False, ProjectDefaults("gpu", '{"save_trial_best": 2}', "base"), ("r1",)),
    }


def test_a_project_is_created_in_its_workspace() -> None:
    change = _create_project(_state(), "audio")
    assert set(change.puts) == {
        ProjectCounter(3, 4),
        Project(3, 2, "audio", owner="ann", created_at=9.0, request_ids=("r1",)),
    }
    # Names are unique within a workspace only.
    assert _create_project(_state(), "vision", workspace_id=1).puts


def test_a_repeated_create_makes_nothing_twice() -> None:
    state = _state()
    _apply(state, _create(state, "prod"))
    assert not _create(state, "prod")
    workspace = record_of_request(state, WORKSPACE, "r1")
    assert workspace is not None
    assert workspace.id == 3
    _apply(state, _create_project(state, "audio"))
    assert not _create_project(state, "audio")


def test_the_request_id_of_one_creation_makes_no_other_record() -> None:
    state = _state()
    _apply(state, _create(state, "prod"))
    _apply(state, _create_project(state, "audio"))
    creations: list[tuple[Callable[[], object], str]] = [
        (lambda: _create(state, "other"), "workspace 'prod'"),
        (lambda: _create(state, "prod", replace(BOB, request_id=ANN.request_id)), "workspace 'prod'"),
        (lambda: _create_project(state, "other"), "project 'audio'"),
        (lambda: _create_project(state, "audio", workspace_id=1), "project 'audio'"),
    ]
    for create, noun in creations:
        with pytest.raises(GanglineError) as raised:
            create()
        assert (raised.value.code, f"for the {noun}" in raised.value.message) == ("request.reused", True)


def test_the_second_of_two_users_learns_who_was_first() -> None:
    state = _state()
    _apply(state, _create(state, "prod"))
    with pytest.raises(GanglineError) as raised:
        _create(state, "prod", BOB)
    assert (raised.value.code, raised.value.kind) == ("workspace.exists", ErrorKind.ALREADY_EXISTS)
    assert raised.value.message == "there is a workspace 'prod' already, of ann; choose another name"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (ProjectChange(name="Uncategorized"), "workspace.exists"),
        (ProjectChange(name=""), "workspace.name"),
        (ProjectChange(resource_pool="big"), "pool.not_found"),
        (ProjectChange(template="bas"), "template.not_found"),
        (ProjectChange(description="x" * 1001), "workspace.description"),
        (ProjectChange(checkpoint_storage_json='{"bukket": "b"}'), "config.unknown_key"),
    ],
)
def test_an_edit_is_checked(change: ProjectChange, code: str) -> None:
    with pytest.raises(GanglineError) as raised:
        _workspace(_state(), EDIT, change=change)
    assert raised.value.code == code


def test_an_edit_changes_only_what_it_names() -> None:
    state = _state(Workspace(3, "prod", "ann", defaults=ProjectDefaults("gpu", '{"save_trial_best": 2}', "base")))
    _counter, edited = _workspace(state, EDIT, change=ProjectChange(resource_pool="", name="p2"), workspace_id=3).puts
    expected = ProjectDefaults("", '{"save_trial_best": 2}', "base")
    assert edited == Workspace(3, "p2", "ann", defaults=expected, request_ids=("r1",))
    (described,) = _project(_state(), EDIT, change=ProjectChange(description="images")).puts
    assert described == Project(2, 2, "vision", "images", "ann", request_ids=("r1",))


def test_a_masked_secret_of_a_default_keeps_its_value_and_stands_for_no_other() -> None:
    stored = '{"type": "s3", "bucket": "b", "secret_key": "s3cr3t"}'
    state = _state(Workspace(3, "prod", "ann", defaults=ProjectDefaults(checkpoint_storage_json=stored)))
    masked = json.dumps({"type": "s3", "bucket": "other", "secret_key": MASK})
    change = ProjectChange(checkpoint_storage_json=masked)
    (edited,) = _workspace(state, EDIT, change=change, workspace_id=3).puts
    assert isinstance(edited, Workspace)
    assert json.loads(edited.defaults.checkpoint_storage_json) == {
        "type": "s3", "bucket": "other", "secret_key": "s3cr3t",
    }  # fmt: skip
    with pytest.raises(GanglineError) as raised:
        _create(state, "thief", checkpoint_storage_json=masked)
    assert raised.value.code == "config.masked"


def test_a_repeated_edit_does_not_undo_a_later_one() -> None:
    state = _state()
    first, second = ProjectChange(name="a"), ProjectChange(name="b")
    _apply(state, _workspace(state, EDIT, ANN, first))
    _apply(state, _workspace(state, EDIT, replace(ANN, request_id="later"), second))
    assert not _workspace(state, EDIT, ANN, first)


def test_the_list_of_requests_stays_short() -> None:
    state = _state()
    for number in range(MAX_REMOVALS + 3):
        caller = Caller("ann", False, f"n{number}")
        _apply(state, _set_template(state, "t", '{"labels": []}', caller, float(number)))
        _apply(state, _workspace(state, EDIT, caller, ProjectChange(name=f"w{number}")))
        _apply(state, _remove_template(state, "t", replace(caller, request_id=f"d{number}")))
    counter, workspace = state.find(ProjectCounter, SINGLETON), state.find(Workspace, 2)
    assert counter is not None
    assert workspace is not None
    assert (len(counter.removal_request_ids), len(workspace.request_ids)) == (MAX_REMOVALS, MAX_REQUESTS)
    assert counter.removal_request_ids[-1] == f"d{MAX_REMOVALS + 2}"


@pytest.mark.parametrize("action", [EDIT, ARCHIVE, UNARCHIVE, DELETE])
def test_only_the_owner_and_administrators_change_it(action: ProjectAction) -> None:
    change = ProjectChange(name="new")
    for act in (_workspace, _project):
        with pytest.raises(GanglineError, match=r"^bob may not .*: only ann and administrators may; ask one of them$"):
            act(_state(), action, BOB, change)
        act(_state(), action, ADMIN, change)
    with pytest.raises(GanglineError, match=r"^bob may not change template 'base': only ann"):
        _set_template(_state(), "base", "{}", BOB, 1.0)
    with pytest.raises(GanglineError, match=r"^bob may not remove template 'base': only ann"):
        _remove_template(_state(), "base", BOB)


@pytest.mark.parametrize("action", [EDIT, ARCHIVE, UNARCHIVE, DELETE])
def test_the_default_workspace_and_project_never_change(action: ProjectAction) -> None:
    for kind, act in (("workspace", _workspace), ("project", _project)):
        with pytest.raises(GanglineError) as raised:
            act(_state(), action, ADMIN, NOTHING, 1)
        assert raised.value.code == f"{kind}.default"


def test_archiving_is_reversible_and_keeps_new_experiments_out() -> None:
    state = _state(_experiment(5, 1))
    _apply(state, _project(state, ARCHIVE))
    assert not _project(state, ARCHIVE, replace(ANN, request_id="again"))
    acts: list[Act] = [
        lambda: move_to_project(state, "cluster", 5, 2),
        lambda: submit_experiment(state, _submission(), Rules(), 1.0),
    ]
    for act in acts:
        with pytest.raises(GanglineError) as raised:
            act()
        assert raised.value.code == "project.archived"
        assert raised.value.message.endswith("unarchive it with: gangline project unarchive lab vision")
    _apply(state, _project(state, UNARCHIVE, replace(ANN, request_id="r5")))
    assert move_to_project(state, "cluster", 5, 2)
    assert submit_experiment(state, _submission(), Rules(), 1.0)


def test_an_archived_workspace_closes_its_projects() -> None:
    state = _state(_experiment(5, 1))
    _apply(state, _workspace(state, ARCHIVE))
    acts: list[Act] = [
        lambda: move_to_project(state, "cluster", 5, 2),
        lambda: submit_experiment(state, _submission(), Rules(), 1.0),
        lambda: _create_project(state, "audio"),
        lambda: _workspace(state, EDIT, replace(ANN, request_id="r6"), ProjectChange(name="x")),
    ]
    for act in acts:
        with pytest.raises(GanglineError) as raised:
            act()
        assert raised.value.code == "workspace.archived"


@pytest.mark.parametrize("deletion", [None, DeletionStage.CODE])
def test_it_is_not_deleted_while_experiments_are_inside(deletion: DeletionStage | None) -> None:
    state = _state(_experiment(5, deletion=deletion), _experiment(6))
    for kind, act in (("project 'vision'", _project), ("workspace 'lab'", _workspace)):
        with pytest.raises(GanglineError) as raised:
            act(state, DELETE)
        assert raised.value.message == (
            f"{kind} holds 2 experiments, so it was not deleted; delete them, or move them with: gangline experiment "
            "move ID PROJECT_ID"
        )


def test_a_deletion_is_remembered() -> None:
    state = _state()
    change = _project(state, DELETE)
    assert change.deletes == ((Project, 2),)
    _apply(state, change)
    assert not _project(state, DELETE)
    with pytest.raises(GanglineError, match="there is no project 2; list them with: gangline project list"):
        _project(state, DELETE, replace(ANN, request_id="other"))
    state = _state()
    _apply(state, _workspace(state, DELETE))
    assert (state.find(Workspace, 2), state.find(Project, 2)) == (None, None)
    assert not _workspace(state, DELETE)
    # Ids are never given again.
    _apply(state, _create(state, "lab", replace(ANN, request_id="new")))
    assert state.find(Workspace, 3) is not None


def test_a_workspace_with_many_projects_is_deleted_in_parts() -> None:
    projects = [Project(number, 2, f"p{number}", owner="ann") for number in range(10, 10 + MAX_HELD_DELETED)]
    with pytest.raises(GanglineError, match="has 101 projects, and at most 100 are deleted with it"):
        _workspace(_state(*projects), DELETE)
    assert len(_workspace(_state(*projects[1:]), DELETE).deletes) == MAX_HELD_DELETED + 1


def test_a_template_that_is_a_default_stays() -> None:
    state = _state()
    _apply(state, _project(state, EDIT, change=ProjectChange(template="base")))
    with pytest.raises(GanglineError, match="template 'base' is the default of project 'vision', so it was not"):
        _remove_template(state, "base", replace(ANN, request_id="d"))
    _apply(state, _project(state, EDIT, replace(ANN, request_id="r7"), ProjectChange(template="")))
    _apply(state, _remove_template(state, "base", replace(ANN, request_id="d")))
    assert state.find(Template, "base") is None
    assert not _remove_template(state, "base", replace(ANN, request_id="d"))


def test_a_template_is_replaced_by_its_owner() -> None:
    state = _state()
    _apply(state, _set_template(state, "base", '{"labels": ["b"]}', ANN, 7.0))
    assert state.find(Template, "base") == Template("base", "ann", '{"labels": ["b"]}', 0.0, 7.0, ("r1",))
    _apply(state, _set_template(state, "base", '{"labels": ["c"]}', replace(ANN, request_id="later"), 8.0))
    assert not _set_template(state, "base", '{"labels": ["b"]}', ANN, 9.0)


def test_a_request_means_the_template_of_its_name() -> None:
    """One request id may set several templates, and remove one of them."""
    state = _state(Template("other", "ann", '{"labels": ["o"]}'))
    for name in ("new", "newer"):
        _apply(state, _set_template(state, name, '{"labels": ["n"]}', ANN, 7.0))
        assert state.find(Template, name) == Template(name, "ann", '{"labels": ["n"]}', 7.0, 7.0, ("r1",))
        assert not _set_template(state, name, '{"labels": ["m"]}', ANN, 8.0)
    for name in ("new", "newer"):
        # A repeated removal changes nothing, so one id removes one template.
        remover = replace(ANN, request_id="r1" if name == "new" else "d")
        _apply(state, _remove_template(state, name, remover))
        assert state.find(Template, name) is None
        assert not _remove_template(state, name, remover)
    _apply(state, _set_template(state, "other", '{"labels": ["n"]}', ANN, 9.0))
    assert state.find(Template, "other") == Template("other", "ann", '{"labels": ["n"]}', 0.0, 9.0, ("r1",))


@pytest.mark.parametrize(
    ("name", "config_json", "code"),
    [
        ("a/b", '{"labels": []}', "template.name"),
        ("t", "", "config.syntax"),
        ("t", '{"bukket": 1}', "config.unknown_key"),
        ("t", json.dumps({"checkpoint_storage": {"type": "s3", "bucket": "b", "secret_key": MASK}}), "config.masked"),
    ],
)
def test_a_template_is_checked(name: str, config_json: str, code: str) -> None:
    with pytest.raises(GanglineError) as raised:
        _set_template(_state(), name, config_json, ANN, 7.0)
    assert raised.value.code == code


def test_what_does_not_exist_is_refused() -> None:
    acts: list[tuple[Act, str]] = [
        (
            lambda: _workspace(_state(), EDIT, workspace_id=9),
            "there is no workspace 9; list them with: gangline workspace list",
        ),
        (
            lambda: _create_project(_state(), "audio", workspace_id=9),
            "there is no workspace 9; list them with: gangline workspace list",
        ),
        (
            lambda: _project(_state(), ARCHIVE, project_id=9),
            "there is no project 9; list them with: gangline project list",
        ),
        (
            lambda: _remove_template(_state(), "bass", ANN),
            "there is no template 'bass'; did you mean 'base'? if not, set it with: gangline template set bass FILE",
        ),
    ]
    for act, message in acts:
        with pytest.raises(GanglineError) as raised:
            act()
        assert (raised.value.message, raised.value.kind) == (message, ErrorKind.NOT_FOUND)


def test_names_within_a_workspace_are_unique() -> None:
    message = "workspace 'lab' has a project 'vision' already, of ann; choose another name"
    state = _state(Project(3, 2, "audio", owner="ann"))
    acts: list[Act] = [
        lambda: _create_project(_state(), "vision"),
        lambda: _project(state, EDIT, change=ProjectChange("vision"), project_id=3),
    ]
    for act in acts:
        with pytest.raises(GanglineError) as raised:
            act()
        assert raised.value.message == message


def test_a_moved_experiment_names_its_new_project() -> None:
    state = _state(_experiment(5, 1), _experiment(6, 0))
    (moved,) = move_to_project(state, "cluster", 5, 2).puts
    assert isinstance(moved, Experiment)
    assert moved.project_id == 2
    config = json.loads(moved.config_json)
    assert (config["workspace"], config["project"]) == ("lab", "vision")
    assert settled_of(moved.config_json).name == "test"
    _apply(state, StateChange(puts=(moved,)))
    assert not move_to_project(state, "cluster", 5, 2)
    # An experiment of an earlier version, which names no project, is in the default one.
    assert not move_to_project(state, "cluster", 6, 1)
    # A late repetition of its submit still finds it.
    check_repeated(moved, {"owner": "ann", "code_sha256": "0" * 64, "config_json": config_json(), "request_id": "r"})
    with pytest.raises(GanglineError, match="there is no project 9"):
        move_to_project(state, "cluster", 5, 9)


def _submission(workspace: str = "lab", project: str = "vision") -> AdmittedSubmission:
    text = config_json(workspace=workspace, project=project)
    return AdmittedSubmission("s1", "ann", settled_of(text), text, "0" * 64, 7, workspace, project, "base")


def test_an_experiment_keeps_its_project_and_its_template() -> None:
    (experiment,) = submit_experiment(_state(), _submission(), Rules(), 1.0).all_of(Experiment)
    assert (experiment.project_id, experiment.template) == (2, "base")
    (experiment,) = submit_experiment(SchedulerState(), _submission("", ""), Rules(), 1.0).all_of(Experiment)
    assert (experiment.project_id, experiment.home_id) == (1, 1)
    with pytest.raises(GanglineError) as raised:
        submit_experiment(_state(), _submission("lab", "vison"), Rules(), 1.0)
    assert raised.value.message == (
        "there is no project 'vison' in workspace 'lab'; did you mean 'vision'? if not, create it with: gangline "
        "project create lab vison"
    )
