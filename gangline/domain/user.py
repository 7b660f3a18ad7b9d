"""PURE: users, their passwords as clients hash them, and their tokens. user.proto and types.proto explain more fields.

The records with hashes are for the cluster's own services. Users see the views.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass

from gangline.errors import GanglineError, invalid, not_found, unauthenticated
from gangline.printable import find_unprintable

# The name under which a holder of the cluster's token calls.
CLUSTER_NAME = "cluster"
MIN_PASSWORD_LENGTH = 8
MAX_TEXT_LENGTH = 200
DEFAULT_LIFESPAN_SECONDS = 30 * 86400.0
# A longer lifespan is a mistake in the unit.
MAX_LIFESPAN_SECONDS = 100 * 365 * 86400.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
# Determined's client puts this before a password, whose sha512 it sends (determined.common.api.authentication).
_SALT = "GubPEmmotfiK9TMD6Zdw"
_SHA512 = re.compile(r"[0-9a-f]{128}")


@dataclass(frozen=True, slots=True)
class EndedSession:
    session_sha256: str
    ends_at: float = 0.0


@dataclass(frozen=True, slots=True)
class User:
    name: str
    token_sha256: str
    is_admin: bool = False
    created_at: float = 0.0
    login_sha256: str = ""
    id: int = 0
    display_name: str = ""
    is_deactivated: bool = False
    password_hash: str = ""
    request_ids: tuple[str, ...] = ()
    ended_sessions: tuple[EndedSession, ...] = ()
    sessions_since: float = 0.0


@dataclass(frozen=True, slots=True)
class AccessToken:
    id: int
    user_id: int
    name: str = ""
    token_sha256: str = ""
    created_at: float = 0.0
    expires_at: float = 0.0
    revoked_at: float = 0.0
    request_id: str = ""

    def ended_at(self, now: float) -> float:
        """Returns since when the token has not held, in Unix seconds; 0 while it holds."""
        ends = [at for at in (self.revoked_at, self.expires_at) if 0.0 < at <= now]
        return min(ends, default=0.0)


@dataclass(frozen=True, slots=True)
class UserCounter:
    next_user_id: int = 1
    next_token_id: int = 1


@dataclass(frozen=True, slots=True)
class UserView:
    """Describes a user to all users."""

    id: int  # 0 for the cluster itself
    name: str
    display_name: str = ""
    is_admin: bool = False
    is_active: bool = True  # whether the user may log in and call
    created_at: float = 0.0
    has_password: bool = False  # whether the user has a password; else the user has tokens alone


@dataclass(frozen=True, slots=True)
class AccessTokenView:
    id: int
    user_id: int
    user_name: str = ""
    name: str = ""  # description that the user gave
    created_at: float = 0.0
    expires_at: float = 0.0  # 0 for a token without end
    revoked_at: float = 0.0  # 0 until it is revoked

    def state(self, now: float) -> str:
        """Returns "active", "revoked" or "expired"."""
        if self.revoked_at:
            return "revoked"
        return "expired" if 0.0 < self.expires_at <= now else "active"


@dataclass(frozen=True, slots=True)
class UserChange:
    """A change of a user. None leaves a value as it is."""

    name: str | None = None
    display_name: str | None = None
    is_admin: bool | None = None
    is_active: bool | None = None
    # As `hash_password` makes it between client and gateway, from there on as it is stored. Empty for no password.
    password: str | None = None


@dataclass(frozen=True, slots=True)
class OneTimeKey:
    """Opens one session of a user in a browser."""

    key: str
    ends_at: float
    http_addresses: tuple[str, ...] = ()  # "host:port" of the gateways, the oldest first


@dataclass(frozen=True, slots=True)
class Session:
    """Is what a login by password opens."""

    token: str
    ends_at: float  # Unix seconds
    user: UserView


def view_user(user: User) -> UserView:
    return UserView(
        user.id,
        user.name,
        user.display_name,
        user.is_admin,
        not user.is_deactivated,
        user.created_at,
        bool(user.password_hash),
    )


def view_token(token: AccessToken, user_name: str) -> AccessTokenView:
    return AccessTokenView(
        token.id, token.user_id, user_name, token.name, token.created_at, token.expires_at, token.revoked_at
    )


def hash_password(password: str) -> str:
    """Returns the form in which clients send a password: 128 hexadecimal digits."""
    return hashlib.sha512((_SALT + password).encode(errors="surrogatepass")).hexdigest()


def check_new_password(password: str) -> None:
    """Checks a password that a user chooses. Raises GanglineError `user.password`."""
    if len(password) < MIN_PASSWORD_LENGTH:
        raise invalid("user.password", f"a password has at least {MIN_PASSWORD_LENGTH} characters; choose a longer one")


def check_hashed(password: str) -> None:
    """Checks the form of a password that a client has hashed. Raises GanglineError `user.password`."""
    if not _SHA512.fullmatch(password):
        raise invalid("user.password", "the password does not have the form in which clients send it; use a client")


def check_user_name(name: str) -> None:
    """Raises GanglineError `user.name`."""
    if not _NAME.fullmatch(name) or name.casefold() == CLUSTER_NAME:
        raise invalid(
            "user.name",
            f"{name[:80]!r} cannot be the name of a user; it has 1 to 64 letters, digits and the characters . _ @ + -, "
            f"begins with a letter or a digit, and is not {CLUSTER_NAME!r}",
        )


def check_shown_text(what: str, text: str) -> None:
    """Checks a displayed name, or the name of a token. Raises GanglineError `user.text`."""
    if len(text) > MAX_TEXT_LENGTH or find_unprintable(text) is not None:
        raise invalid("user.text", f"{what} has at most {MAX_TEXT_LENGTH} printable characters; correct it")


def check_lifespan(seconds: float) -> None:
    """Raises GanglineError `token.lifespan`. 0 is the default lifespan, and a negative number no end."""
    if not math.isfinite(seconds) or seconds > MAX_LIFESPAN_SECONDS:
        raise invalid("token.lifespan", "a token lives for at most 36500 days; give a number of days, or -1 for no end")


def no_user(name: str) -> GanglineError:
    return not_found("user.not_found", f"there is no user {name[:80]!r}; list them with: gangline user list")


def inactive_user(name: str) -> GanglineError:
    return unauthenticated(
        "auth.inactive", f"user {name[:80]!r} is deactivated or was renamed; ask an administrator, or log in again"
    )


def no_token(token_id: int) -> GanglineError:
    return not_found("token.not_found", f"there is no token {token_id}; list them with: gangline token list")
