"""Tokens: the cluster's, the users', and one for each allocation.

Owns how tokens are made, hashed and checked. An allocation's token is derived from the cluster token, so it is stored
nowhere. Every holder of the cluster token can check it, and its own holder can act for this one allocation only. Never
logs a token.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from gangline.errors import GanglineError, invalid, unauthenticated

_ALLOCATION_PREFIX = "alloc"
_ALLOCATION_PURPOSE = b"gangline allocation token v1:"
_MIN_TOKEN_LENGTH = 16


def new_token() -> str:
    """Returns a new secret of 256 bits, safe in URLs and headers."""
    return secrets.token_urlsafe(32)


def load_token(path: Path | str) -> str:
    """Reads the token in a file, without the white space around it. Raises GanglineError `security.no_token_file` or
    `security.bad_token_file`."""
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise invalid("security.no_token_file", f"cannot read the token file {path}: {_reason(error)}") from error
    if len(token) < _MIN_TOKEN_LENGTH or any(character.isspace() for character in token):
        raise invalid(
            "security.bad_token_file",
            f"{path} holds no token of {_MIN_TOKEN_LENGTH} characters or more; write one line of random text into it",
        )
    return token


def hash_token(token: str) -> str:
    """Returns the stored form of a user's token. Tokens are random, so a plain hash cannot be reversed by guessing."""
    return hashlib.sha256(token.encode()).hexdigest()


def is_same_token(left: str, right: str) -> bool:
    """Compares in a time that does not depend on how much is equal."""
    return hmac.compare_digest(left.encode(), right.encode())


def allocation_token(cluster_token: str, allocation_id: str) -> str:
    """Returns the token that the runners of an allocation present to the scheduler and the gateway."""
    return f"{_ALLOCATION_PREFIX}:{allocation_id}:{_sign(cluster_token, allocation_id)}"


def is_allocation_token(token: str) -> bool:
    """Returns whether the token claims to be an allocation's; `check_allocation_token` verifies the claim."""
    return token.startswith(_ALLOCATION_PREFIX + ":")


def check_allocation_token(cluster_token: str, token: str) -> str:
    """Returns the allocation id that the token belongs to. Raises GanglineError `security.bad_allocation_token`."""
    prefix, _, rest = token.partition(":")
    allocation_id, _, signature = rest.rpartition(":")
    is_ours = is_same_token(signature, _sign(cluster_token, allocation_id))
    if prefix != _ALLOCATION_PREFIX or not allocation_id or not is_ours:
        raise bad_allocation_token()
    return allocation_id


def bad_allocation_token() -> GanglineError:
    return unauthenticated(
        "security.bad_allocation_token",
        "this is no token of an allocation of this cluster; was the cluster token changed?",
    )


def _sign(cluster_token: str, allocation_id: str) -> str:
    message = _ALLOCATION_PURPOSE + allocation_id.encode()
    return hmac.new(cluster_token.encode(), message, hashlib.sha256).hexdigest()


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "it is not text"
