"""The limits of a transaction, and what shows that one was applied."""

from __future__ import annotations

from typing import Any

import pytest

from services.common import keys
from services.common.etcd import Delete, Guard, Put
from services.common.etcd.stub import messages
from services.common.etcd.transaction import applied_revision, check_limits, prefix_end, transaction_request


def stored(**revision_by_key: tuple[bytes, int]) -> Any:
    """etcd's answer to the reading of these keys: value and the revision that wrote it."""
    kvs = [{"key": key.encode(), "value": value, "mod_revision": n} for key, (value, n) in revision_by_key.items()]
    responses = [{"response_range": {"kvs": [kv]}} for kv in kvs]
    return messages.TxnResponse(header={"revision": 99}, responses=responses)


@pytest.mark.parametrize(
    ("operations", "guards", "message"),
    [
        ([], [], "at least one operation"),
        ([Put(str(n), b"") for n in range(129)], [], "129 operations in one transaction; etcd allows 128"),
        ([Put("a", b"")], [Guard(str(n), 0, 0) for n in range(65)], "130 comparisons in one transaction"),
        ([Put("a", b""), Delete("a")], [], "names 1 keys twice: a"),
        ([Put("a", bytes(512_000))], [], "a transaction of 512001 bytes; at most 512000"),
    ],
)
def test_limits_are_asserted_with_their_numbers(operations: Any, guards: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_limits(operations, guards)


def test_the_largest_transaction_is_allowed() -> None:
    operations = [Put(str(n), bytes(3_000)) for n in range(128)]
    assert len(transaction_request(operations, [Guard(str(n), 0) for n in range(128)]).success) == 128


@pytest.mark.parametrize(
    ("answer", "revision"),
    [
        (stored(a=(b"1", 7), b=(b"2", 7)), 7),
        (stored(a=(b"1", 7), b=(b"2", 8)), None),
        (stored(a=(b"1", 7)), None),
        (stored(a=(b"1", 7), b=(b"other", 7)), None),
        (stored(a=(b"1", 7), b=(b"2", 7), gone=(b"", 3)), None),
    ],
)
def test_evidence_of_an_applied_transaction(answer: Any, revision: int | None) -> None:
    assert applied_revision([Put("a", b"1"), Put("b", b"2"), Delete("gone")], answer) == revision


def test_a_key_under_another_lease_is_no_evidence() -> None:
    assert applied_revision([Put("a", b"1", lease=5)], stored(a=(b"1", 7))) is None


def test_deletions_alone_show_by_absence() -> None:
    assert applied_revision([Delete("a")], stored()) == 99
    assert applied_revision([Delete("a")], stored(a=(b"", 7))) is None


@pytest.mark.parametrize(("prefix", "end"), [("a", b"b"), ("/x/", b"/x0"), ("", b"\0"), ("ÿ", b"\xc3\xc0")])
def test_prefix_end(prefix: str, end: bytes) -> None:
    assert prefix_end(prefix) == end


def test_no_prefix_of_the_schema_holds_another() -> None:
    prefixes = [value for name, value in vars(keys).items() if name.isupper() and name != "ROOT"]
    assert [(a, b) for a in prefixes for b in prefixes if a != b and a.startswith(b)] == []
    assert all(prefix.startswith(keys.ROOT) for prefix in prefixes)


def test_experiments_are_listed_by_age() -> None:
    assert sorted(keys.experiment(number) for number in (10, 9, 100)) == [
        keys.experiment(9),
        keys.experiment(10),
        keys.experiment(100),
    ]
