"""Tokens: whose they are, and what they allow."""

from __future__ import annotations

import pytest

from gangline.domain.resource import User
from gangline.errors import ErrorKind, GanglineError
from services.common import keys
from services.common.security import allocation_token, hash_token
from services.common.server import Principal
from services.gateway.mirror.auth import Authenticator, check_trial, check_user
from tests.support.stand_in_mirror import StandInMirror

CLUSTER = "the-cluster-token-of-this-test"


@pytest.fixture
def authenticator() -> Authenticator:
    mirror = StandInMirror()
    mirror.put(keys.user("alice"), User("alice", hash_token("token-of-alice")))
    mirror.put(keys.user("admin"), User("admin", hash_token("token-of-admin"), is_admin=True))
    return Authenticator(mirror, CLUSTER)


def refused(authenticator: Authenticator, token: str | None) -> GanglineError:
    with pytest.raises(GanglineError) as failure:
        authenticator.identify(token)
    return failure.value


def test_each_token_is_its_owners(authenticator: Authenticator) -> None:
    assert authenticator.identify("token-of-alice") == Principal("user", "alice")
    assert authenticator.identify("token-of-admin") == Principal("user", "admin", is_admin=True)
    assert authenticator.identify(CLUSTER).kind == "cluster"
    assert authenticator.identify(allocation_token(CLUSTER, "1.1.1")) == Principal("allocation", "1.1.1")


@pytest.mark.parametrize("token", ["token-of-alicf", "Token-of-alice", hash_token("token-of-alice"), "ü"])
def test_wrong_token_is_told_so_in_one_line(authenticator: Authenticator, token: str) -> None:
    error = refused(authenticator, token)
    assert (error.code, error.kind) == ("auth.wrong_token", ErrorKind.UNAUTHENTICATED)
    assert "belongs to no user of this cluster" in error.message
    assert token not in error.message


@pytest.mark.parametrize("token", [None, ""])
def test_no_token_is_told_what_to_do(authenticator: Authenticator, token: str | None) -> None:
    assert refused(authenticator, token).code == "auth.no_token"


def test_allocation_token_of_another_cluster_is_refused(authenticator: Authenticator) -> None:
    forged = allocation_token("another-cluster-token-here", "1.1.1")
    assert refused(authenticator, forged).kind is ErrorKind.UNAUTHENTICATED
    assert refused(authenticator, allocation_token(CLUSTER, "1.1.1").replace("1.1.1", "1.1.2")).code.startswith(
        "security"
    )


def test_cluster_that_never_had_a_leader_says_so_instead_of_blaming_the_token() -> None:
    error = refused(Authenticator(StandInMirror(), CLUSTER), "token-of-alice")
    assert (error.code, error.kind) == ("auth.no_users", ErrorKind.UNAVAILABLE)


def test_removed_user_is_refused_at_once() -> None:
    mirror = StandInMirror()
    mirror.put(keys.user("alice"), User("alice", hash_token("token-of-alice")))
    mirror.put(keys.user("bob"), User("bob", hash_token("token-of-bob")))
    authenticator = Authenticator(mirror, CLUSTER)
    assert authenticator.identify("token-of-alice").name == "alice"
    mirror.state.apply(keys.user("alice"), None)
    assert refused(authenticator, "token-of-alice").code == "auth.wrong_token"


def test_runners_deliver_for_their_own_allocation_only() -> None:
    runner = Principal("allocation", "1.1.2")
    check_trial(runner, "1.1", "1.1.2")
    for trial_id, allocation_id in [("1.1", "1.1.1"), ("1.2", "1.1.2"), ("1", "1.1.2"), ("1.11", "1.1.2")]:
        with pytest.raises(GanglineError) as failure:
            check_trial(runner, trial_id, allocation_id)
        assert failure.value.kind is ErrorKind.FORBIDDEN


def test_users_do_not_deliver_and_runners_do_not_read() -> None:
    with pytest.raises(GanglineError):
        check_trial(Principal("user", "alice", is_admin=True), "1.1", "1.1.1")
    with pytest.raises(GanglineError):
        check_user(Principal("allocation", "1.1.1"))
