"""Tokens: made, hashed, derived for an allocation, and refused when they were touched."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.errors import ErrorKind, GanglineError
from services.common.access.security import (
    allocation_token,
    check_allocation_token,
    hash_token,
    is_allocation_token,
    load_token,
)

CLUSTER = "a cluster token of 32 characters"


def test_a_token_is_loaded_without_white_space_and_its_hash_hides_it(tmp_path: Path) -> None:
    first, second = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    (tmp_path / "token").write_text(f"  {first}\n")
    assert load_token(tmp_path / "token") == first
    assert hash_token(first) != hash_token(second)
    assert first not in hash_token(first)


@pytest.mark.parametrize("content", ["", "short", "two words are not one token", "\xff\xfe"])
def test_a_file_without_a_token_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content, encoding="latin-1")
    with pytest.raises(GanglineError) as caught:
        load_token(tmp_path / "token")
    assert str(tmp_path / "token") in caught.value.message


def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(GanglineError, match="No such file") as caught:
        load_token(tmp_path / "token")
    assert caught.value.code == "security.no_token_file"


@given(st.text(alphabet="abc0123456789.-:", min_size=1))
def test_an_allocation_token_speaks_for_its_allocation(allocation_id: str) -> None:
    token = allocation_token(CLUSTER, allocation_id)
    assert token.startswith(f"alloc:{allocation_id}:")
    assert is_allocation_token(token)
    assert check_allocation_token(CLUSTER, token) == allocation_id


@pytest.mark.parametrize(
    "token",
    [
        allocation_token(CLUSTER, "1.1.1").replace("1.1.1", "2.1.1"),
        allocation_token("another cluster's token", "1.1.1"),
        allocation_token(CLUSTER, "1.1.1")[:-1],
        "alloc::" + allocation_token(CLUSTER, "").rpartition(":")[2],
        "alloc:1.1.1:",
        "user:" + allocation_token(CLUSTER, "1.1.1").partition(":")[2],
        "",
        "alloc:1.1.1:ümlaut",
    ],
)
def test_other_tokens_are_refused(token: str) -> None:
    with pytest.raises(GanglineError) as caught:
        check_allocation_token(CLUSTER, token)
    assert caught.value.kind is ErrorKind.UNAUTHENTICATED
    assert token not in caught.value.message or not token
