"""The limit of wrong passwords: it holds an attacker up, and locks nobody out for good."""

from __future__ import annotations

import pytest

from gangline.errors import ErrorKind, GanglineError
from services.common.connection.peer import peer_host
from services.gateway.usecase.open.login_limit import (
    FAILURES_OF_ADDRESS,
    FAILURES_OF_USER,
    MAX_ENTRIES,
    SECONDS_OF_USER,
    LoginLimit,
    network_of,
)


def _fail(limit: LoginLimit, peer: str, name: str, count: int, now: float = 0.0) -> None:
    for _ in range(count):
        limit.check(peer, name, now)
        limit.begin(peer, name, now)


def _is_refused(limit: LoginLimit, peer: str, name: str, now: float = 0.0) -> bool:
    try:
        limit.check(peer, name, now)
    except GanglineError as error:
        return (error.code, error.kind) == ("auth.too_many_logins", ErrorKind.FORBIDDEN)
    return False


def test_one_user_is_held_up_for_one_address_alone_and_only_for_a_while() -> None:
    limit = LoginLimit()
    _fail(limit, "10.0.0.1", "admin", FAILURES_OF_USER)
    assert _is_refused(limit, "10.0.0.1", "admin")
    assert not _is_refused(limit, "10.0.0.2", "admin")
    assert not _is_refused(limit, "10.0.0.1", "ann")
    assert _is_refused(limit, "10.0.0.1", "admin", SECONDS_OF_USER - 0.5)
    assert not _is_refused(limit, "10.0.0.1", "admin", SECONDS_OF_USER + 0.5)


def test_refused_logins_do_not_make_the_wait_longer() -> None:
    limit = LoginLimit()
    _fail(limit, "a", "admin", FAILURES_OF_USER)
    assert all(_is_refused(limit, "a", "admin", second / 10) for second in range(90))
    assert not _is_refused(limit, "a", "admin", SECONDS_OF_USER + 0.5)


def test_many_names_from_one_address_are_held_up_too() -> None:
    limit = LoginLimit()
    for number in range(FAILURES_OF_ADDRESS):
        _fail(limit, "a", f"user{number}", 1)
    assert _is_refused(limit, "a", "another")
    assert not _is_refused(limit, "b", "another")


def test_a_right_password_takes_nothing() -> None:
    limit = LoginLimit()
    for _ in range(10 * FAILURES_OF_ADDRESS):
        limit.check("a", "ann", 0.0)
        limit.begin("a", "ann", 0.0)
        limit.succeed("a", "ann", 0.0)
    assert len(limit) == 0


def test_logins_at_the_same_time_count_before_they_are_answered() -> None:
    limit = LoginLimit()
    for _ in range(FAILURES_OF_USER):
        limit.begin("a", "ann", 0.0)
    assert _is_refused(limit, "a", "ann")


def test_memory_is_bounded_and_an_attack_forgets_itself_last() -> None:
    limit = LoginLimit()
    for number in range(3 * MAX_ENTRIES):
        limit.begin(f"peer{number}", "x" * 1000, 0.0)
    assert len(limit) == MAX_ENTRIES
    _fail(limit, "a", "ann", FAILURES_OF_USER)
    assert _is_refused(limit, "a", "ann")


@pytest.mark.parametrize(
    ("peer", "host", "network"),
    [
        ("ipv4:10.0.0.1:5000", "10.0.0.1", "10.0.0.1"),
        ("ipv6:%5B2001:db8::1%5D:5000", "2001:db8::1", "2001:db8::/64"),
        ("ipv6:[2001:db8::2]:5000", "2001:db8::2", "2001:db8::/64"),
        ("ipv6:%5B::ffff:10.0.0.1%5D:5000", "::ffff:10.0.0.1", "10.0.0.1"),
        ("unix:", "unix:", "unix:"),
        ("", "", ""),
    ],
)
def test_an_address_is_read_as_grpc_writes_it(peer: str, host: str, network: str) -> None:
    assert peer_host(peer) == host
    assert network_of(host) == network


def test_an_address_without_a_budget_is_refused_before_a_name_is_known() -> None:
    limit = LoginLimit()
    for _ in range(FAILURES_OF_ADDRESS):
        limit.check_address("10.0.0.1", 0.0)
        limit.fail_address("10.0.0.1", 0.0)
    with pytest.raises(GanglineError, match="too many wrong passwords came from your address"):
        limit.check_address("10.0.0.1", 0.0)
    limit.check_address("10.0.0.2", 0.0)
