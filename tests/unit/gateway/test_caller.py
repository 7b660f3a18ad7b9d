"""Who may call: users, and trial runners for their own allocation; and that no use case is made without a check."""

from __future__ import annotations

import ast
import inspect
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gangline.errors import ErrorKind, GanglineError
from gangline.v1 import gateway_pb2, project_pb2, user_pb2
from services.common.server import Principal
from services.gateway.app import describe_api
from services.gateway.leader.leader_client import request_id_of
from services.gateway.mirror.caller import MAX_REQUEST_ID, Caller, Runner
from services.gateway.usecase import bundle
from services.gateway.usecase.bundle import OpenCases, RunnerCases, Shared, UseCases, UserCases

ALICE, ADMIN = Principal("user", "alice"), Principal("user", "admin", is_admin=True)
CLUSTER = Principal("cluster", "cluster", is_admin=True)
RUNNER, AGENT, ANYBODY = Principal("allocation", "1.1.2"), Principal("agent", "a1"), Principal("anonymous", "")
USECASES = UseCases(
    cast("OpenCases", None), cast("Any", None), cast("Any", None), cast("Shared", SimpleNamespace(mirror=None))
)


@pytest.mark.parametrize("principal", [ALICE, ADMIN, CLUSTER])
def test_users_and_the_cluster_are_callers(principal: Principal) -> None:
    caller = USECASES.of(principal, "r").caller
    assert (caller.name, caller.is_admin, caller.request_id) == (principal.name, principal.is_admin, "r")


@pytest.mark.parametrize("principal", [RUNNER, AGENT, ANYBODY])
def test_nothing_is_made_for_any_other_principal(principal: Principal) -> None:
    for make in (USECASES.of, Caller):
        with pytest.raises(GanglineError, match="the token of an allocation may only deliver") as caught:
            make(principal)
        assert (caught.value.code, caught.value.kind) == ("auth.forbidden", ErrorKind.FORBIDDEN)


def test_users_and_anybody_deliver_nothing() -> None:
    for principal in (ALICE, ADMIN, ANYBODY):
        for make in (USECASES.of_runner, Runner):
            with pytest.raises(GanglineError, match="may not deliver for a trial runner") as caught:
                make(principal)
            assert caught.value.code == "auth.forbidden"


def test_runners_deliver_for_their_own_allocation_only() -> None:
    runner = Runner(RUNNER)
    assert (runner.allocation_id, runner.agent_id) == ("1.1.2", "")
    runner.check_trial("1.1", "1.1.2")
    for trial_id, allocation_id in [("1.1", "1.1.1"), ("1.2", "1.1.2"), ("1", "1.1.2"), ("1.11", "1.1.2")]:
        with pytest.raises(GanglineError, match=r"allocation 1\.1\.2 may not deliver for trial") as failure:
            runner.check_trial(trial_id, allocation_id)
        assert (failure.value.code, failure.value.kind) == ("auth.forbidden", ErrorKind.FORBIDDEN)


def test_agents_and_the_cluster_deliver_in_place_of_runners() -> None:
    assert (Runner(AGENT).allocation_id, Runner(AGENT).agent_id) == ("", "a1")
    for principal in (AGENT, CLUSTER):
        Runner(principal).check_trial("1.1", "1.1.2")


def test_rights_of_owners_and_administrators() -> None:
    for principal, owner, is_own in [(ALICE, "alice", True), (ALICE, "bob", False), (ADMIN, "bob", True)]:
        assert Caller(principal).owns(owner) == is_own
    Caller(ADMIN).check_owner("bob", "do this")
    Caller(ADMIN).check_admin("do this")
    with pytest.raises(GanglineError, match=r"^alice may not do this: only bob and administrators may; ask") as caught:
        Caller(ALICE).check_owner("bob", "do this")
    assert caught.value.code == "auth.not_owner"
    with pytest.raises(GanglineError, match=r"^alice is no administrator, and only those may do this; ask") as caught:
        Caller(ALICE).check_admin("do this")
    assert caught.value.code == "auth.not_admin"


def test_each_change_without_a_request_id_gets_its_own() -> None:
    caller = Caller(ALICE)
    caller.check_request_id()
    assert len({request_id_of(caller) for _ in range(3)}) == 3
    named = USECASES.of(ALICE).with_request_id("r").caller
    assert [request_id_of(named), request_id_of(named)] == ["r", "r"]
    assert request_id_of(Caller(ALICE, "r" * MAX_REQUEST_ID)) == "r" * MAX_REQUEST_ID
    for request_id, code in (("", "request.no_id"), ("r" * (MAX_REQUEST_ID + 1), "request.long_id")):
        with pytest.raises(GanglineError) as caught:
            request_id_of(Caller(ALICE, request_id))
        assert caught.value.code == code


def test_every_use_case_of_a_user_is_made_for_a_caller() -> None:
    topics = _made_by(UserCases)
    assert len(topics) > 10
    assert {name for name, made in topics.items() if _first(made) != ("caller", Caller)} == set()
    assert {name for name, made in _made_by(RunnerCases).items() if _first(made) != ("runner", Runner)} == set()


def test_every_module_of_use_cases_is_in_the_bundle() -> None:
    """A class beside them would be a way around the check. What needs no user is in `open`."""
    folder = Path(inspect.getfile(bundle)).parent
    files = [*folder.glob("*.py"), *(folder / "runner").glob("*.py")]
    classes = {
        (path.stem, node.name)
        for path in files
        if path.stem != "bundle"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and any(isinstance(child, ast.AsyncFunctionDef) for child in node.body)
    }
    made = {
        (each.__module__.rpartition(".")[2], each.__name__)
        for each in (*_made_by(UserCases).values(), *_made_by(RunnerCases).values())
    }
    assert classes <= made


def test_no_use_case_takes_a_principal_or_a_request_id_of_a_change() -> None:
    for cases in (UserCases, RunnerCases):
        for made in _made_by(cases).values():
            for name, method in inspect.getmembers(made, inspect.isfunction):
                names = set(inspect.signature(method).parameters)
                # `find` looks for the experiment of an earlier request.
                allowed = {"request_id"} if (made.__name__, name) == ("Experiments", "find") else set()
                assert not names & {"principal", "request_id"} - allowed, (made, name)


def test_messages_of_changes_have_a_request_id_and_reads_have_none() -> None:
    """BoundCalls takes it from there, so a change without the field would get a new id at each retry."""
    changes = {"Create", "Update", "Kill", "Delete", "Archive", "Unarchive", "Set", "Remove", "Move", "Revoke", "Post"}
    changes |= {"Continue", "Import", "Forget", "LogOut", "ProfileTrial"}
    messages = {
        method.input_type.name: method.input_type.fields_by_name
        for method in gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"].methods
        if method.name.startswith(tuple(changes))
    }
    assert {gateway_pb2.KillTrialRequest.DESCRIPTOR.name, project_pb2.MoveExperimentRequest.DESCRIPTOR.name} <= {
        *messages
    }
    assert user_pb2.LogOutRequest.DESCRIPTOR.name in messages
    # A key is stored only when it is used, so two of them do no harm.
    lacking = {name for name, fields in messages.items() if "request_id" not in fields}
    assert lacking == {user_pb2.CreateKeyRequest.DESCRIPTOR.name}


def test_the_changes_that_take_their_request_id_from_a_header() -> None:
    """A route that loses it would make its change twice when a client repeats it."""
    paths = describe_api()["paths"]
    keyed = {
        (method, path)
        for path, operations in paths.items()
        for method, operation in operations.items()
        if any(parameter["name"] == "Idempotency-Key" for parameter in operation.get("parameters", ()))
    }
    topics = (
        "workspaces", "projects", "templates", "models", "users", "tokens", "quotas", "saved-views", "groups", "roles",
    )  # fmt: skip
    changes = {
        (method, path)
        for path, operations in paths.items()
        for method in operations
        if method != "get" and path.startswith(tuple(f"/api/v1/{topic}" for topic in topics))
    }
    experiment = "/api/v1/experiments"
    others = {
        experiment,
        *(f"{experiment}/{{experiment_id}}/{rest}" for rest in ("continue", "move")),
        "/api/v1/bulk/experiments",
        "/api/v1/tasks",
    }
    assert keyed == changes | {("post", path) for path in others}


def _made_by(cases: type) -> dict[str, Any]:
    properties = inspect.getmembers(cases, lambda member: isinstance(member, property))
    return {name: typing.get_type_hints(made.fget)["return"] for name, made in properties}


def _first(made: Any) -> tuple[str, object]:
    """Returns the first argument of the class, and its type."""
    name = next(iter(inspect.signature(made).parameters))
    return name, typing.get_type_hints(made.__init__)[name]
