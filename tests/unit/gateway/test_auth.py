"""Tokens: whose they are, and what they allow."""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import replace

import pytest

from gangline.domain.user import AccessToken, EndedSession, User
from gangline.errors import ErrorKind, GanglineError
from services.common import keys
from services.common.access.security import access_token, allocation_token, hash_token, is_of_determined, session_token
from services.common.server import Principal
from services.gateway.mirror.auth import SESSION_SECONDS, Authenticator
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


BOB = User("bob", "", id=5, password_hash="stored")


@pytest.fixture
def world() -> tuple[StandInMirror, Authenticator]:
    mirror = StandInMirror()
    mirror.put(keys.user("bob"), BOB)
    return mirror, Authenticator(mirror, CLUSTER)


def put_token(mirror: StandInMirror, **fields: float) -> str:
    secret = access_token(CLUSTER, 3, "request", is_determined=False)
    mirror.put(keys.token(3), AccessToken(3, 5, token_sha256=hash_token(secret), **fields))  # type: ignore[arg-type]
    return secret


def test_a_token_is_its_users_until_it_ends(world: tuple[StandInMirror, Authenticator]) -> None:
    mirror, authenticator = world
    secret = put_token(mirror, expires_at=time.time() + 100)
    assert authenticator.identify(secret) == Principal("user", "bob")
    mirror.put(keys.user("bob"), replace(BOB, is_admin=True))
    assert authenticator.identify(secret).is_admin
    put_token(mirror, expires_at=time.time() - 1)
    assert refused(authenticator, secret).code == "auth.token_ended"
    put_token(mirror, revoked_at=time.time() - 1)
    assert "was revoked" in refused(authenticator, secret).message
    mirror.state.apply(keys.token(3), None)
    assert refused(authenticator, secret).code == "auth.wrong_token"


def test_a_deactivated_user_is_refused_by_every_token(world: tuple[StandInMirror, Authenticator]) -> None:
    mirror, authenticator = world
    tokens = [put_token(mirror), "own-token-of-bob", authenticator.open_session(BOB, is_determined=False)[0]]
    mirror.put(keys.user("bob"), replace(BOB, token_sha256=hash_token("own-token-of-bob")))
    assert [authenticator.identify(token).name for token in tokens] == ["bob"] * 3
    mirror.put(keys.user("bob"), replace(BOB, token_sha256=hash_token("own-token-of-bob"), is_deactivated=True))
    for token in tokens:
        assert (refused(authenticator, token).code, refused(authenticator, token).kind) == (
            "auth.inactive",
            ErrorKind.UNAUTHENTICATED,
        )


@pytest.mark.parametrize("is_determined", [True, False])
def test_a_session_ends_with_the_password_the_logout_and_the_name(
    world: tuple[StandInMirror, Authenticator], is_determined: bool
) -> None:
    mirror, authenticator = world
    session, ends_at = authenticator.open_session(BOB, is_determined=is_determined)
    assert is_of_determined(session) == is_determined
    assert authenticator.identify(session) == Principal("user", "bob")
    assert authenticator.read_session(session) == ("bob", ends_at)
    for changed in (
        replace(BOB, password_hash="another"),
        replace(BOB, password_hash=""),
        replace(BOB, ended_sessions=(EndedSession(hash_token(session), ends_at),)),
        replace(BOB, sessions_since=ends_at - SESSION_SECONDS + 0.5),
    ):
        mirror.put(keys.user("bob"), changed)
        assert refused(authenticator, session).code == "auth.session"
    mirror.put(keys.user("bob"), replace(BOB, ended_sessions=(EndedSession("another", ends_at),)))
    assert authenticator.identify(session).name == "bob"
    mirror.state.apply(keys.user("bob"), None)
    assert refused(authenticator, session).code == "auth.session"


def test_a_session_of_one_kind_is_none_of_the_other() -> None:
    mirror = StandInMirror()
    mirror.put(keys.user("bob"), BOB)
    authenticator = Authenticator(mirror, CLUSTER)
    session, _ = authenticator.open_session(BOB, is_determined=True)
    assert refused(authenticator, session.replace("session:", "login:")).code == "auth.session"
    assert session_token(CLUSTER, "bob", "", 2**40, is_determined=False) != session
    assert refused(authenticator, session_token(CLUSTER, "bob", "", 2**40)).code == "auth.session"


def test_sessions_of_one_second_differ_and_those_of_earlier_versions_hold() -> None:
    mirror = StandInMirror()
    mirror.put(keys.user("bob"), BOB)
    authenticator = Authenticator(mirror, CLUSTER)
    sessions = {authenticator.open_session(BOB, is_determined=False)[0] for _ in range(20)}
    assert len(sessions) == 20
    ends_at = int(time.time()) + 100
    message = f"gangline own session token v1:{ends_at}:{hash_token(BOB.password_hash)}:bob"
    signature = hmac.new(CLUSTER.encode(), message.encode(), hashlib.sha256).hexdigest()
    assert authenticator.identify(f"login:{ends_at}:bob:{signature}").name == "bob"
    assert refused(authenticator, f"login:{ends_at}:bob:{'0' * 16}{signature}").code == "auth.session"


async def test_only_the_login_needs_no_token(authenticator: Authenticator) -> None:
    anonymous = await authenticator.authenticate("/gangline.v1.GatewayService/LogIn", "wrong")
    assert anonymous == Principal("anonymous", "")
    with pytest.raises(GanglineError, match="needs a token"):
        await authenticator.authenticate("/gangline.v1.GatewayService/GetMe", None)


def test_a_repeated_request_gets_the_same_token_and_no_other_does() -> None:
    first = access_token(CLUSTER, 3, "r", is_determined=False)
    assert first == access_token(CLUSTER, 3, "r", is_determined=False)
    others = {
        access_token(CLUSTER, 4, "r", is_determined=False),
        access_token(CLUSTER, 3, "s", is_determined=False),
        access_token("another-cluster-token", 3, "r", is_determined=False),
    }
    assert first not in others
    assert len(first) > 40
