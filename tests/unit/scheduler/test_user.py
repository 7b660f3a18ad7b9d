"""Transitions of users, sessions and tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gangline.domain.experiment import Experiment, Template, Workspace
from gangline.domain.state import State
from gangline.domain.user import (
    DEFAULT_LIFESPAN_SECONDS,
    AccessToken,
    EndedSession,
    User,
    UserChange,
    UserCounter,
)
from gangline.errors import ErrorKind, GanglineError
from services.scheduler.agents.runner_spec import has_other_users
from services.scheduler.state.records import SINGLETON, Record, SchedulerState, StateChange
from services.scheduler.transition.account import token_change, user_change
from services.scheduler.transition.account.token_change import create_token, revoke_token, token_of_request
from services.scheduler.transition.account.user_change import (
    check_active,
    create_user,
    end_all_sessions,
    end_session,
    found_users,
    update_user,
    user_of_request,
)
from services.scheduler.transition.project.rule import Caller

NOW = 2_000_000_000.0
ANN = Caller("ann", False, "r1")
ROOT = Caller("root", True, "r2")
CLUSTER = Caller("cluster", True, "r3")
BASE: tuple[Record, ...] = (
    User("admin", "t", True, id=1, login_sha256="l"),
    User("root", "", True, id=2),
    User("ann", "", id=3, password_hash="old"),
    User("gone", "", id=4, is_deactivated=True),
    UserCounter(5, 7),
)


def _state(*more: Record) -> SchedulerState:
    return SchedulerState.of((*BASE, *more))


def _after(state: SchedulerState, change: StateChange) -> SchedulerState:
    state.apply(change, state.revision + 1)
    return state


def _refusal(act: Callable[[], object]) -> GanglineError:
    with pytest.raises(GanglineError) as failure:
        act()
    return failure.value


def _create(state: SchedulerState, caller: Caller, name: str = "eve", **fields: object) -> StateChange:
    return create_user(state, replace(UserChange(name), **fields), caller, NOW)  # type: ignore[arg-type]


def _token(state: SchedulerState, caller: Caller, owner: str = "ann", lifespan: float = 0.0) -> StateChange:
    return create_token(state, owner, "ci", lifespan, caller, hash_of=lambda number: f"hash-{number}", now=NOW)


def test_a_cluster_of_an_earlier_version_keeps_its_administrator_and_gets_ids() -> None:
    state = SchedulerState.of([User("admin", "old", True, 5.0, "old")])
    _after(state, found_users(state, "new", "new-login", NOW))
    assert state.find(User, "admin") == User("admin", "new", True, 5.0, "new-login", id=1)
    assert state.find(UserCounter, SINGLETON) == UserCounter(2, 1)
    before = state.find(User, "admin")
    _after(state, found_users(state, "new", "new-login", NOW + 1))
    assert state.find(User, "admin") == before


def test_a_new_term_keeps_what_the_administrator_has_changed() -> None:
    state = _state()
    _after(state, update_user(state, "admin", UserChange(password="own", display_name="Root"), CLUSTER))
    _after(state, found_users(state, "t2", "l2", NOW))
    admin = state.find(User, "admin")
    assert admin is not None
    assert (admin.password_hash, admin.display_name, admin.token_sha256, admin.id) == ("own", "Root", "t2", 1)
    assert not found_users(state, "", "", NOW)


def test_the_operators_token_is_an_administrators_again_with_the_next_term() -> None:
    state = SchedulerState.of([User("admin", "t", is_admin=False, id=1, is_deactivated=True)])
    [admin] = found_users(state, "t", "l", NOW).puts
    assert isinstance(admin, User)
    assert (admin.is_admin, admin.is_deactivated) == (True, False)


def test_a_repeated_request_creates_one_user() -> None:
    state = _state()
    _after(state, _create(state, ROOT, password="hash"))
    assert not _create(state, ROOT, password="another salt")
    created = user_of_request(state, "r2")
    assert created is not None
    assert (created.name, created.id, created.password_hash, created.created_at) == ("eve", 5, "hash", NOW)
    assert state.find(UserCounter, SINGLETON) == UserCounter(6, 7)
    assert _refusal(lambda: _create(state, ROOT, "mallory")).code == "request.reused"


@pytest.mark.parametrize("name", ["", "-x", "a b", "a:b", "a/b", "x" * 65, "cluster", "Cluster", "ü", "a\n"])
def test_names_that_would_break_keys_or_sessions_are_refused(name: str) -> None:
    assert _refusal(lambda: _create(_state(), ROOT, name)).code == "user.name"


def test_names_that_differ_in_case_alone_are_one() -> None:
    assert _refusal(lambda: _create(_state(), ROOT, "ANN")).kind is ErrorKind.ALREADY_EXISTS
    assert update_user(_state(), "ann", UserChange(name="Ann"), ROOT)


def test_only_administrators_create_and_only_by_the_leaders_own_records() -> None:
    assert _refusal(lambda: _create(_state(), ANN)).code == "auth.not_admin"
    # A gateway that is behind takes her for an administrator still.
    assert _refusal(lambda: _create(_state(), replace(ANN, is_admin=True))).code == "auth.not_admin"
    assert _refusal(lambda: _create(_state(), Caller("gone", True, "r"))).code == "auth.inactive"
    assert _refusal(lambda: _create(_state(), Caller("renamed", True, "r"))).code == "auth.inactive"
    assert _create(_state(), CLUSTER)


@pytest.mark.parametrize(
    ("caller", "name", "change", "code"),
    [
        (ANN, "ann", UserChange(password="new"), ""),
        (ANN, "ann", UserChange(display_name="Ann B."), ""),
        (ANN, "ann", UserChange(is_admin=True), "auth.not_admin"),
        (ANN, "ann", UserChange(is_active=True), "auth.not_admin"),
        (ANN, "ann", UserChange(name="anne"), "auth.not_admin"),
        (ANN, "root", UserChange(password="new"), "auth.not_admin"),
        (ANN, "nobody", UserChange(password="new"), "auth.not_admin"),
        (ROOT, "ann", UserChange(password="new"), ""),
        (ROOT, "ann", UserChange(is_admin=True, is_active=False), ""),
        (ROOT, "nobody", UserChange(is_admin=True), "user.not_found"),
        (ROOT, "root", UserChange(is_admin=False), "user.fixed"),
        (ROOT, "root", UserChange(is_active=False), "user.fixed"),
        (ROOT, "admin", UserChange(is_active=False), "user.fixed"),
        (ROOT, "admin", UserChange(is_admin=False), "user.fixed"),
        (ROOT, "admin", UserChange(name="boss"), "user.fixed"),
        (ROOT, "admin", UserChange(password="own"), ""),
        (CLUSTER, "root", UserChange(is_admin=False), ""),
        (ROOT, "ann", UserChange(display_name="\x1b[2J"), "user.text"),
        (ROOT, "ann", UserChange(name="gone"), "user.exists"),
    ],
)
def test_who_may_change_what(caller: Caller, name: str, change: UserChange, code: str) -> None:
    if code:
        assert _refusal(lambda: update_user(_state(), name, change, caller)).code == code
        return
    assert update_user(_state(), name, change, caller)


def test_a_repeated_change_is_made_once_even_under_the_new_name() -> None:
    state = _state()
    change = UserChange(name="anne")
    _after(state, update_user(state, "ann", change, ROOT))
    assert state.find(User, "ann") is None
    renamed = state.find(User, "anne")
    assert renamed is not None
    assert (renamed.id, renamed.password_hash) == (3, "old")
    assert not update_user(state, "ann", change, ROOT)
    assert user_of_request(state, "r2") == renamed


@pytest.mark.parametrize(
    "owned",
    [Experiment(1, "r", "ann", "", "{}", State.TERMINAL), Workspace(2, "lab", "ann"), Template("base", "ann")],
    ids=["experiment", "workspace", "template"],
)
def test_a_user_who_owns_something_keeps_the_name(owned: Record) -> None:
    error = _refusal(lambda: update_user(_state(owned), "ann", UserChange(name="anne"), ROOT))
    assert error.code == "user.owns"
    assert "--display-name" in error.message


def test_deactivated_users_are_refused_and_unknown_names_are_not() -> None:
    assert _refusal(lambda: check_active(_state(), "gone")).kind is ErrorKind.UNAUTHENTICATED
    for name in ("ann", "cluster", ""):
        check_active(_state(), name)


def test_the_number_of_users_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_change, "MAX_USERS", 4)
    assert _refusal(lambda: _create(_state(), ROOT)).code == "user.too_many"


def test_ended_sessions_are_forgotten_when_they_would_be_over_and_their_number_is_limited() -> None:
    state = _state()
    for number in range(user_change.MAX_ENDED_SESSIONS):
        _after(state, end_session(state, "ann", f"s{number}", NOW + 10, NOW))
    assert not end_session(state, "ann", "s1", NOW + 10, NOW)
    full = state.find(User, "ann")
    assert full is not None
    assert len(full.ended_sessions) == user_change.MAX_ENDED_SESSIONS
    later = end_session(state, "ann", "late", NOW + 99, NOW + 11).puts[0]
    assert isinstance(later, User)
    assert later.ended_sessions == (EndedSession("late", NOW + 99),)
    over = end_session(state, "ann", "more", NOW + 10, NOW + 1).puts[0]
    assert isinstance(over, User)
    # A key that ended all is not used again, though it may be newer than they.
    assert (over.ended_sessions, over.sessions_since) == ((EndedSession("more", NOW + 10),), NOW + 1)
    for name, ends_at in (("nobody", NOW + 10), ("ann", NOW)):
        assert not end_session(state, name, "x", ends_at, NOW)


def test_all_sessions_of_a_user_end_at_once() -> None:
    state = _state()
    _after(state, end_session(state, "ann", "s1", NOW + 10, NOW))
    ended = end_all_sessions(state, "ann", NOW + 1).puts[0]
    assert isinstance(ended, User)
    assert (ended.ended_sessions, ended.sessions_since) == ((EndedSession("s1", NOW + 10),), NOW + 1)
    assert not end_all_sessions(state, "nobody", NOW)


def test_a_repeated_request_makes_one_token() -> None:
    state = _state()
    _after(state, _token(state, ANN))
    assert not _token(state, ANN)
    assert token_of_request(state, "r1") == AccessToken(
        7, 3, "ci", "hash-7", NOW, NOW + DEFAULT_LIFESPAN_SECONDS, 0.0, "r1"
    )
    assert _refusal(lambda: _token(state, replace(ROOT, request_id="r1"), "root")).code == "request.reused"


def test_who_may_make_tokens_for_whom() -> None:
    assert _refusal(lambda: _token(_state(), ANN, "root")).code == "auth.not_admin"
    assert _token(_state(), ROOT, "ann")
    assert _token(_state(), CLUSTER, "ann")
    assert _refusal(lambda: _token(_state(), ROOT, "nobody")).code == "user.not_found"
    assert _refusal(lambda: _token(_state(), ROOT, "gone")).code == "auth.inactive"


@pytest.mark.parametrize("lifespan", [float("nan"), float("inf"), 1e12])
def test_a_lifespan_is_a_number_of_days(lifespan: float) -> None:
    assert _refusal(lambda: _token(_state(), ANN, lifespan=lifespan)).code == "token.lifespan"


def test_a_token_without_end_and_one_that_has_ended() -> None:
    [_, token] = _token(_state(), ANN, lifespan=-1.0).puts
    assert isinstance(token, AccessToken)
    assert (token.expires_at, token.ended_at(NOW * 9)) == (0.0, 0.0)
    assert replace(token, expires_at=NOW).ended_at(NOW) == NOW
    assert replace(token, expires_at=NOW).ended_at(NOW - 1) == 0.0
    assert replace(token, expires_at=NOW, revoked_at=NOW - 5).ended_at(NOW) == NOW - 5


def test_tokens_are_limited_and_those_that_ended_long_ago_go() -> None:
    live = [AccessToken(number, 3) for number in range(100, 100 + token_change.MAX_TOKENS)]
    assert _refusal(lambda: _token(_state(*live), ANN)).code == "token.too_many"
    ended = [AccessToken(1, 3, expires_at=NOW - 31 * 86400), AccessToken(2, 3, revoked_at=NOW - 29 * 86400)]
    other = AccessToken(3, 2, expires_at=1.0)
    change = _token(_state(*live[1:], *ended, other), ANN)
    assert change.deletes == ((AccessToken, 1),)


def test_a_user_who_makes_and_revokes_tokens_does_not_fill_etcd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_change, "MAX_ENDED_TOKENS", 2)
    state = _state()
    for number in range(7):
        caller = replace(ANN, request_id=f"t{number}")
        change = create_token(state, "ann", "", 0.0, caller, hash_of=str, now=NOW + number)
        made = next(record for record in change.puts if isinstance(record, AccessToken))
        _after(state, change)
        _after(state, revoke_token(state, made.id, caller, NOW + number))
    assert [token.id for token in state.all_of(AccessToken)] == [11, 12, 13]


def test_who_may_revoke_what() -> None:
    own, other = AccessToken(1, 3), AccessToken(2, 2)
    state = _state(own, other)
    assert _refusal(lambda: revoke_token(state, 2, ANN, NOW)).code == "token.not_found"
    assert _refusal(lambda: revoke_token(state, 9, ROOT, NOW)).code == "token.not_found"
    assert revoke_token(state, 1, ANN, NOW).puts == (replace(own, revoked_at=NOW),)
    _after(state, revoke_token(state, 1, ROOT, NOW))
    assert not revoke_token(state, 1, ROOT, NOW + 5)


def test_others_who_may_not_open_what_an_owner_runs() -> None:
    """Administrators may, and those who cannot act any more run nothing."""
    users = [user for user in BASE if isinstance(user, User)]
    assert not has_other_users(users, "ann")
    assert has_other_users(users, "admin")
    assert has_other_users([*users, User("bob", "", id=5)], "ann")
