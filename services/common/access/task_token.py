"""Tokens of tasks: the code in its id, the token of a browser, and the seed of a shell's key.

All are derived from the cluster token, so they are stored nowhere, and every gateway makes and checks the same ones.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import uuid

from gangline.errors import unauthenticated
from services.common.access.security import is_same_token

_CODE_PURPOSE = b"gangline task code v1:"
_PROXY_PURPOSE = b"gangline proxy token v1:"
_SHELL_PURPOSE = b"gangline shell key v1:"
# Digits of a time in seconds.
_MOST_DIGITS = 15


def task_code(cluster_token: str, experiment_id: int) -> str:
    """Returns the code that the id of a task has for its owner, in the form of a UUID."""
    digest = hmac.new(cluster_token.encode(), _CODE_PURPOSE + str(experiment_id).encode(), hashlib.sha256).digest()
    return str(uuid.UUID(bytes=digest[:16]))


def proxy_token(cluster_token: str, user: str, login_sha256: str, trial: str, ends_at: int) -> str:
    """Returns a token with which a browser of this user reaches one task, and nothing else.

    login_sha256: of the user's record, so the token ends with the user's own. ends_at: seconds since 1970.
    """
    name = base64.urlsafe_b64encode(user.encode()).decode().rstrip("=")
    return f"{ends_at}.{name}.{_sign_proxy(cluster_token, user, login_sha256, trial, ends_at)}"


def read_proxy_token(token: str) -> tuple[str, int]:
    """Returns the user and the end that the token claims; `check_proxy_token` verifies the claim. The user is empty for
    a text that is no such token."""
    ends_at, _, rest = token.partition(".")
    name, _, signature = rest.partition(".")
    try:
        user = base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
    except ValueError:
        return "", 0
    is_number = ends_at.isascii() and ends_at.isdecimal() and len(ends_at) <= _MOST_DIGITS
    return (user, int(ends_at)) if is_number and user and signature else ("", 0)


def check_proxy_token(cluster_token: str, token: str, login_sha256: str, trial: str, now: float) -> None:
    """Verifies the claim. Raises GanglineError `auth.proxy`."""
    user, ends_at = read_proxy_token(token)
    expected = proxy_token(cluster_token, user, login_sha256, trial, ends_at)
    if user and now < ends_at and is_same_token(token, expected):
        return
    raise unauthenticated("auth.proxy", "this address has expired, or is of another task; ask for it again")


def shell_seed(cluster_token: str, owner: str, experiment_id: int) -> bytes:
    """Returns the 32 bytes from which the key of a shell's owner is made. So every gateway makes the same key, and none
    stores it."""
    message = _SHELL_PURPOSE + f"{experiment_id}:{owner}".encode()
    return hmac.new(cluster_token.encode(), message, hashlib.sha256).digest()


def _sign_proxy(cluster_token: str, user: str, login_sha256: str, trial: str, ends_at: int) -> str:
    message = _PROXY_PURPOSE + f"{ends_at}:{trial}:{login_sha256}:{user}".encode()
    return hmac.new(cluster_token.encode(), message, hashlib.sha256).hexdigest()
