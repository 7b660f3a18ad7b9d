"""The stored form of a password."""

from __future__ import annotations

import pytest

from gangline.domain.user import hash_password
from services.common.access.password import SALT_BYTES, UNKNOWN, is_password, store_password

STORED = store_password(hash_password("Secret123"), b"s" * SALT_BYTES)


def test_only_the_password_fits_and_the_form_has_nothing_of_it() -> None:
    assert is_password(STORED, hash_password("Secret123"))
    assert not is_password(STORED, hash_password("secret123"))
    assert not is_password(STORED, "")
    assert hash_password("Secret123") not in STORED
    assert store_password(hash_password("Secret123"), b"t" * SALT_BYTES) != STORED


def test_clients_send_what_the_client_of_determined_sends() -> None:
    assert hash_password("Secret123") == (
        "00427e90e81c2fc07d2ce94549a7cd474bfb6cbb7d524b188df8ed655f44950e"
        "44e54a8de7a96ef327d45a85cb3f88d638439fd51d1514669c062ab60359a081"
    )


@pytest.mark.parametrize(
    "stored",
    [
        "", "scrypt", "plain$14$8$5$AAAA$AAAA", STORED.replace("$14$", "$40$"), STORED.replace("$14$", "$0$"),
        STORED.replace("$8$", "$9999$"), STORED.replace("$5$", "$-1$"), STORED.replace("$14$", "$x$"), STORED + "$",
        UNKNOWN, STORED[:-6] + "?" * 6,
    ],
)  # fmt: skip
def test_a_form_that_is_none_fits_nothing_and_takes_no_memory(stored: str) -> None:
    assert not is_password(stored, hash_password("Secret123"))
