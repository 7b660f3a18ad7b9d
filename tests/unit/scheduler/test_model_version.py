"""Transitions of models, versions and aliases, and the rule that a version keeps its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gangline.config.layer.registry_check import MAX_ALIASES
from gangline.domain.access import WorkspaceRoles
from gangline.domain.experiment import Checkpoint, Experiment, ProjectCounter, Template, TextChange, Trial, Workspace
from gangline.domain.named_kind import MODEL, TEMPLATE, WORKSPACE, NamedKind
from gangline.domain.registry import Model, ModelAlias, ModelVersion, ModelVersionChange
from gangline.domain.state import CheckpointState, DeletionStage, Outcome, ProjectAction, State
from gangline.domain.user import User
from gangline.errors import ErrorKind, GanglineError
from gangline.protocol import wire
from gangline.v1 import project_pb2
from services.scheduler.state.records import SINGLETON, Draft, Record, SchedulerState, StateChange, get
from services.scheduler.state.retention import Retention
from services.scheduler.transition.checkpoint import delete_checkpoints, find_unkept
from services.scheduler.transition.project.model_version import (
    AliasRequest,
    VersionRequest,
    change_version,
    set_alias,
    version_of_request,
)
from services.scheduler.transition.project.named_change import change_named
from services.scheduler.transition.project.rule import Caller, NamedChange
from services.scheduler.transition.removal import delete_experiment
from services.scheduler.transition.report import MAX_VALIDATION_BYTES
from tests.support.scheduler import config_json

ANN = Caller("ann", False, "r1")
BOB = Caller("bob", False, "r2")
ADMIN = Caller("root", True, "r3")
CREATE, EDIT, ARCHIVE, DELETE = ProjectAction.CREATE, ProjectAction.EDIT, ProjectAction.ARCHIVE, ProjectAction.DELETE
METADATA = json.dumps({"validation_metrics": {"loss": 0.5}, "steps_completed": 4})
CHECKPOINTS = tuple(
    Checkpoint(f"c{number}", "1.1", 1, number, "/s", metadata_json=METADATA, created_at=float(number))
    for number in (1, 2, 3)
)
BASE: tuple[Record, ...] = (
    Workspace(1, "Uncategorized"),
    Workspace(2, "lab", "ann"),
    Experiment(1, "e", "bob", config_json(), "0", State.TERMINAL, Outcome.COMPLETED),
    Trial("1.1", 1, 1, state=State.TERMINAL, outcome=Outcome.COMPLETED, latest_checkpoint_id="c3"),
    *CHECKPOINTS,
    Model(1, "mnist", "ann"),
    ProjectCounter(next_model_id=2),
)
NO_RETENTION = Retention(0, 0, 0, "loss", smaller_is_better=True)


def _state(*more: Record) -> SchedulerState:
    return SchedulerState.of((*BASE, *more))


def _apply(state: SchedulerState, change: StateChange) -> SchedulerState:
    state.apply(change, state.revision + 1)
    return state


def _register(checkpoint_id: str = "c2", caller: Caller = ANN, model_id: int = 1, **more: Any) -> VersionRequest:
    return VersionRequest(CREATE, caller, 9.0, model_id, checkpoint_id=checkpoint_id, **more)


def _with_version(*aliases: str) -> SchedulerState:
    state = _state()
    return _apply(state, change_version(state, _register(aliases=aliases)))


def _alias(version: int, caller: Caller = ADMIN, **more: Any) -> AliasRequest:
    return AliasRequest(caller, 10.0, 1, "champion", version, **more)


def _refusal(act: Callable[[], object], code: str) -> str:
    with pytest.raises(GanglineError) as raised:
        act()
    assert raised.value.code == code
    assert "\n" not in raised.value.message
    return raised.value.message


def test_a_version_has_what_its_checkpoint_says() -> None:
    change = change_version(_state(), _register(change=ModelVersionChange("first"), aliases=("champion", "best")))
    assert set(change.puts) == {
        ModelVersion(
            "1.1", 1, 1, "c2", name="first", trial_id="1.1", experiment_id=1, batches_completed=2,
            metrics_json='{"loss": 0.5}', owner="ann", created_at=9.0, request_ids=("r1",),
        ),
        replace(
            Model(1, "mnist", "ann"), next_version=2, updated_at=9.0, request_ids=("r1",),
            aliases=(ModelAlias("best", 1), ModelAlias("champion", 1)),
        ),
    }  # fmt: skip


def test_a_version_keeps_as_many_metrics_as_a_report() -> None:
    """A large record would prevent every later change of the version from being written."""
    metrics = {f"a{number:06d}" + "x" * 90: 0.1 for number in range(4600)} | {"loss": 0.5}
    large = replace(CHECKPOINTS[1], metadata_json=json.dumps({"validation_metrics": metrics}))
    imported = replace(large, id="i1", trial_id="", experiment_id=0)
    for checkpoint in (large, imported):
        (version,) = change_version(_state(large, imported), _register(checkpoint.id)).all_of(ModelVersion)
        assert MAX_VALIDATION_BYTES // 2 < len(version.metrics_json) <= MAX_VALIDATION_BYTES
        # The searcher's metric of the experiment is not among the first by name.
        assert json.loads(version.metrics_json).get("loss") == (0.5 if checkpoint is large else None)


def test_versions_of_a_model_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangline.config.layer.registry_check.MAX_VERSIONS", 2)
    state = _state(Model(2, "other model", "ann"), ModelVersion("2.1", 2, 1, "c1"))
    for number in (1, 2):
        _apply(state, change_version(state, _register(caller=Caller("ann", False, f"n{number}"))))
    third = _register(caller=Caller("ann", False, "n3"))
    assert _refusal(lambda: change_version(state, third), "model.versions") == (
        "model 'mnist' would have 3 versions, at most 2 are allowed; delete some with: gangline model delete-version "
        "mnist VERSION"
    )
    # A repeated request is no further version, and another model has its own.
    assert not change_version(state, _register(caller=Caller("ann", False, "n2")))
    assert change_version(state, replace(third, model_id=2))
    _apply(state, change_version(state, VersionRequest(DELETE, ADMIN, 9.0, 1, 1)))
    assert change_version(state, third)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (MODEL, "there are 2 models, and no more are allowed; delete some first with: gangline model delete"),
        (
            WORKSPACE,
            "there are 2 workspaces, and no more are allowed; delete some first with: gangline workspace delete",
        ),
        (TEMPLATE, "there are 2 templates, and no more are allowed; remove some first with: gangline template remove"),
    ],
    ids=["model", "workspace", "template"],
)
def test_named_records_are_bounded(kind: NamedKind[Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.scheduler.transition.project.named_change.MAX_RECORDS", 2)
    state = _state(Model(2, "second", "ann"), Template("first", "ann"), Template("second", "ann"))
    name: dict[str, Any] = {} if kind.is_numbered else {"key": "third"}
    third = NamedChange(kind, CREATE, ANN, (), 9.0, **name, wanted={"name": "third"})
    assert _refusal(lambda: change_named(state, third), f"{kind.noun}.number") == message
    # What is there is changed all the same.
    settings = {"config_json": json.dumps({"max_restarts": 1})}
    key, wanted = (2, {"name": "third"}) if kind.is_numbered else ("second", settings)
    assert change_named(state, replace(third, action=EDIT, key=key, wanted=wanted))


def test_a_new_name_is_confirmed_by_the_counter() -> None:
    """A gateway that does not find a name waits for the newest value of the counter."""
    state = _state()
    kinds: tuple[tuple[NamedKind[Any], int], ...] = ((MODEL, 1), (WORKSPACE, 2))
    for number, (kind, key) in enumerate(kinds, 1):
        for name, is_new in (("renamed", True), ("renamed", False)):
            edit = NamedChange(kind, EDIT, Caller("ann", False, f"{key}{is_new}"), (), 9.0, key, {"name": name})
            change = change_named(state, edit)
            assert [counter.num_renames for counter in change.all_of(ProjectCounter)] == ([number] if is_new else [])
            _apply(state, change)
    text = NamedChange(MODEL, EDIT, ADMIN, (), 9.0, 1, {"description": "d"})
    assert not change_named(state, text).touches(ProjectCounter)


def test_numbers_are_never_given_again() -> None:
    state = _with_version()
    _apply(state, change_version(state, VersionRequest(DELETE, ADMIN, 9.0, 1, 1)))
    assert state.find(ModelVersion, "1.1") is None
    _apply(state, change_version(state, _register(caller=replace(ANN, request_id="r9"))))
    version = version_of_request(state, 1, "r9")
    assert version is not None
    assert version.number == 2


def test_a_repeated_request_registers_and_deletes_once() -> None:
    state = _with_version()
    assert not change_version(state, _register())
    assert "version 1" in _refusal(lambda: change_version(state, _register("c1")), "request.reused")
    delete = VersionRequest(DELETE, Caller("ann", False, "d"), 9.0, 1, 1)
    _apply(state, change_version(state, delete))
    assert not change_version(state, delete)
    again = replace(delete, caller=Caller("ann", False, "d2"))
    assert "gangline model versions mnist" in _refusal(lambda: change_version(state, again), "model.no_version")


@pytest.mark.parametrize(
    ("more", "checkpoint_id", "code"),
    [
        ((), "c9", "checkpoint.not_found"),
        ((replace(CHECKPOINTS[1], state=CheckpointState.DELETING),), "c2", "checkpoint.deleting"),
        ((Experiment(1, "e", "bob", config_json(), "0", State.TERMINAL, deletion=DeletionStage.FILES),), "c2",
         "experiment.deleting"),
        ((Model(1, "mnist", "ann", archived=True),), "c2", "model.archived"),
    ],
    ids=["unknown", "marked", "experiment in deletion", "archived model"],
)  # fmt: skip
def test_what_cannot_be_registered(more: tuple[Record, ...], checkpoint_id: str, code: str) -> None:
    _refusal(lambda: change_version(_state(*more), _register(checkpoint_id)), code)


def test_an_imported_checkpoint_is_registered() -> None:
    imported = Checkpoint("i1", "", 0, 7, "/s", imported_as="old", owner="ann")
    change = change_version(_state(imported), _register("i1"))
    (version,) = change.all_of(ModelVersion)
    assert (version.trial_id, version.experiment_id, version.metrics_json) == ("", 0, "{}")


def test_owner_and_administrators_alone_change_a_model() -> None:
    state = _with_version()
    acts: tuple[Callable[[Caller], StateChange], ...] = (
        lambda caller: change_version(state, _register("c1", caller)),
        lambda caller: change_version(state, VersionRequest(EDIT, caller, 9.0, 1, 1, change=ModelVersionChange("x"))),
        lambda caller: change_version(state, VersionRequest(DELETE, caller, 9.0, 1, 1)),
        lambda caller: set_alias(state, _alias(1, caller)),
        lambda caller: change_named(state, NamedChange(MODEL, EDIT, caller, (), 9.0, 1, {"description": "x"})),
    )
    for act in acts:
        assert "only ann and administrators" in _refusal(lambda act=act: act(BOB), "auth.not_owner")  # type: ignore[misc]
        assert act(ADMIN)


def test_an_alias_moves_only_from_where_it_is_expected() -> None:
    state = _with_version("champion")
    _apply(state, change_version(state, _register("c3", Caller("ann", False, "r4"))))
    text = _refusal(lambda: set_alias(state, _alias(2, expected_version=0)), "model.alias_moved")
    assert "points at version 1 by now" in text
    _apply(state, set_alias(state, _alias(2, expected_version=1)))
    assert get(state, Model, 1).version_of("champion") == 2
    assert not set_alias(state, _alias(2)), "the request was made before"
    assert not set_alias(state, _alias(2, Caller("ann", False, "r5"))), "it points there already"
    _refusal(lambda: set_alias(state, _alias(3, Caller("ann", False, "r6"))), "model.no_version")
    _apply(state, set_alias(state, _alias(0, Caller("ann", False, "r7"), expected_version=2)))
    assert get(state, Model, 1).aliases == ()


@pytest.mark.parametrize("alias", ["", "7", "a/b", "-x", "a b", "x" * 81, "a\n"])
def test_an_alias_is_no_number_and_fits_into_a_path(alias: str) -> None:
    state = _with_version()
    _refusal(lambda: set_alias(state, replace(_alias(1), alias=alias)), "model.alias")
    _refusal(lambda: change_version(state, _register("c1", BOB_AS_ANN, aliases=(alias,))), "model.alias")


BOB_AS_ANN = Caller("ann", False, "r8")


def test_aliases_are_bounded() -> None:
    aliases = tuple(ModelAlias(f"a{number:03d}", 1) for number in range(MAX_ALIASES))
    state = _state(Model(1, "mnist", "ann", next_version=2, aliases=aliases), ModelVersion("1.1", 1, 1, "c1"))
    _refusal(lambda: set_alias(state, _alias(1)), "model.aliases")
    assert set_alias(state, replace(_alias(0), alias="a000"))


def test_a_version_with_an_alias_and_a_model_with_versions_stay() -> None:
    state = _with_version("champion")
    text = _refusal(lambda: change_version(state, VersionRequest(DELETE, ADMIN, 9.0, 1, 1)), "model.aliased")
    assert text.endswith("gangline model unalias mnist champion")
    text = _refusal(lambda: change_named(state, NamedChange(MODEL, DELETE, ADMIN, (), 9.0, 1)), "model.not_empty")
    assert text == (
        "model 'mnist' has 1 version, so it was not deleted; delete them first with: gangline model delete-version "
        "mnist 1"
    )
    assert change_named(_state(), NamedChange(MODEL, DELETE, ANN, (), 9.0, 1)).deletes == ((Model, 1),)


def test_a_version_keeps_its_checkpoint_from_users_retention_and_experiments() -> None:
    state = _with_version()
    expected = (
        "checkpoint c2 is version 1 of model 'mnist', so nothing was deleted; remove the version first with: gangline "
        "model delete-version mnist 1"
    )
    assert _refusal(lambda: delete_checkpoints(state, ["c1", "c2"], "x"), "checkpoint.registered") == expected
    assert _refusal(lambda: delete_experiment(state, 1), "checkpoint.registered") == expected
    trials = state.trials_of(1)
    assert [checkpoint.id for checkpoint in find_unkept(state, trials, NO_RETENTION)] == ["c1", "c3"]
    _apply(state, change_version(state, VersionRequest(DELETE, ADMIN, 9.0, 1, 1)))
    assert [checkpoint.id for checkpoint in find_unkept(state, trials, NO_RETENTION)] == ["c1", "c2", "c3"]
    assert delete_checkpoints(state, ["c2"], "x")
    assert delete_experiment(state, 1)


def test_a_draft_shows_versions_as_they_will_be() -> None:
    state = _with_version()
    draft = Draft(state)
    draft.put(ModelVersion("1.2", 1, 2, "c2"))
    assert [version.id for version in draft.versions_of_checkpoint("c2")] == ["1.1", "1.2"]
    draft.delete(ModelVersion, "1.1")
    assert [version.id for version in draft.versions_of_checkpoint("c2")] == ["1.2"]


def test_versions_are_found_by_their_model() -> None:
    state = _state(ModelVersion("1.1", 1, 1, "c1"), ModelVersion("2.1", 2, 1, "c1"))
    draft = Draft(state)
    draft.put(ModelVersion("1.2", 1, 2, "c2"))
    draft.delete(ModelVersion, "1.1")
    assert [version.id for version in draft.versions_of_model(1)] == ["1.2"]
    assert [version.id for version in state.versions_of_model(1)] == ["1.1"]
    _apply(state, draft.change)
    assert [version.id for version in state.versions_of_model(1)] == ["1.2"]
    assert [version.id for version in state.versions_of_model(2)] == ["2.1"]
    assert state.versions_of_model(3) == []


def test_labels_are_replaced_as_they_are_when_the_change_is_made() -> None:
    state = _state(Model(1, "mnist", "ann", labels=("a", "new")))
    wanted = {"labels": TextChange(add_labels=("b", "a"), replaces_labels=True)}
    _apply(state, change_named(state, NamedChange(MODEL, EDIT, ANN, (), 9.0, 1, wanted)))
    assert get(state, Model, 1).labels == ("a", "b")
    none = {"labels": TextChange(replaces_labels=True)}
    _apply(state, change_named(state, NamedChange(MODEL, EDIT, BOB_AS_ANN, (), 9.0, 1, none)))
    assert get(state, Model, 1).labels == ()


def test_a_model_is_created_edited_and_moved() -> None:
    state = _state()
    wanted = {
        "name": "digits", "description": "d", "notes": "# n", "workspace_id": "lab", "metadata_json": '{"a": 1}',
        "labels": TextChange(add_labels=("b", "a")),
    }  # fmt: skip
    _apply(state, change_named(state, NamedChange(MODEL, CREATE, ANN, (), 9.0, wanted=wanted)))
    assert get(state, ProjectCounter, SINGLETON).next_model_id == 3
    assert get(state, Model, 2) == Model(
        2, "digits", "ann", 9.0, 9.0, False, "d", "# n", ("a", "b"), '{"a": 1}', 2, 1, (), ("r1",)
    )
    edit = {"labels": TextChange(remove_labels=("a",)), "workspace_id": "Uncategorized"}
    _apply(state, change_named(state, NamedChange(MODEL, EDIT, ADMIN, (), 10.0, 2, edit)))
    assert (get(state, Model, 2).labels, get(state, Model, 2).workspace_id) == (("b",), 1)


@pytest.mark.parametrize(("models", "model_id"), [((), 1), ((Model(1, "mnist", "ann"), Model(7, "other", "ann")), 8)])
def test_a_counter_of_an_earlier_version_gives_no_id_twice(models: tuple[Record, ...], model_id: int) -> None:
    """Such a leader has written the counter of a cluster without the ids of models, also after a newer one had led."""
    written = project_pb2.ProjectCounter(next_workspace_id=3, next_project_id=3)
    counter = wire.decode(ProjectCounter, written.SerializeToString())
    state = SchedulerState.of((Workspace(1, "Uncategorized"), *models, counter))
    _apply(state, change_named(state, NamedChange(MODEL, CREATE, ANN, (), 9.0, wanted={"name": "digits"})))
    assert get(state, Model, model_id).name == "digits"
    assert get(state, ProjectCounter, SINGLETON) == ProjectCounter(3, 3, (), model_id + 1)


def test_a_model_tells_when_it_was_changed() -> None:
    state = _state()
    assert not change_named(state, NamedChange(MODEL, EDIT, ANN, (), 10.0, 1, {"name": "mnist"}))
    _apply(state, change_named(state, NamedChange(MODEL, ARCHIVE, ANN, (), 11.0, 1)))
    assert get(state, Model, 1).updated_at == 11.0
    again = replace(ANN, request_id="r9")
    assert not change_named(state, NamedChange(MODEL, ARCHIVE, again, (), 12.0, 1))


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("name", "mnist", "model.exists"),
        ("name", "a/b", "model.name"),
        ("description", "x" * 1001, "model.description"),
        ("notes", "x" * (16 << 10) + "x", "texts.too_long"),
        ("workspace_id", "nowhere", "workspace.not_found"),
        ("metadata_json", "[1]", "document.invalid"),
        ("metadata_json", json.dumps({"a": "x" * (64 << 10)}), "model.metadata"),
        ("labels", TextChange(add_labels=(" a",)), "texts.label"),
    ],
)
def test_bad_values_of_a_model_are_refused(field: str, value: Any, code: str) -> None:
    wanted = {"name": "digits", field: value}
    _refusal(lambda: change_named(_state(), NamedChange(MODEL, CREATE, ANN, (), 9.0, wanted=wanted)), code)


def test_a_workspace_with_models_is_not_deleted() -> None:
    delete = NamedChange(WORKSPACE, DELETE, ADMIN, (), 9.0, 2)
    state = _state(Model(3, "in lab", "ann", workspace_id=2))
    assert "holds 1 model, such as 'in lab'" in _refusal(lambda: change_named(state, delete), "workspace.not_empty")
    assert change_named(_state(), delete)


def test_an_archived_model_is_left_alone_but_for_deletions() -> None:
    state = _with_version()
    _apply(state, change_named(state, NamedChange(MODEL, ARCHIVE, ADMIN, (), 9.0, 1)))
    later = Caller("ann", False, "r9")
    _refusal(lambda: set_alias(state, _alias(1, later)), "model.archived")
    edit = VersionRequest(EDIT, later, 9.0, 1, 1, change=ModelVersionChange("x"))
    _refusal(lambda: change_version(state, edit), "model.archived")
    assert change_version(state, VersionRequest(DELETE, later, 9.0, 1, 1))
    with pytest.raises(GanglineError) as raised:
        change_version(state, VersionRequest(ARCHIVE, later, 9.0, 1, 1))
    assert raised.value.kind is ErrorKind.INVALID


@pytest.mark.parametrize("action", [CREATE, EDIT, DELETE])
@pytest.mark.parametrize("number", [1, 9])
def test_nobody_learns_of_versions_of_an_unseen_model(action: ProjectAction, number: int) -> None:
    state = _state(
        WorkspaceRoles(0), Model(2, "hidden", "ann", workspace_id=2), ModelVersion("2.1", 2, 1, "c1", owner="ann"),
        User("bob", "", id=7),
    )  # fmt: skip
    asked = VersionRequest(action, BOB, 1.0, 2, checkpoint_id="c1", number=number)
    with pytest.raises(GanglineError) as refusal:
        change_version(state, asked)
    assert refusal.value.code == "model.not_found"
    assert "hidden" not in refusal.value.message
