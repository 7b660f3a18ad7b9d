"""Logins by password.

A password arrives here as clients hash it. It is in no log and no error.
"""

from __future__ import annotations

import time

import structlog

from gangline.domain.user import Session, User, view_user
from gangline.errors import ErrorKind, GanglineError
from services.common import keys
from services.common.access.password import UNKNOWN, is_password
from services.common.access.security import hash_token, is_same_token
from services.common.server import Principal
from services.gateway.audit.attempt import current_attempt
from services.gateway.mirror.auth import Authenticator, principal_of
from services.gateway.mirror.mirror import Watched
from services.gateway.usecase.open.login_limit import LoginLimit
from services.gateway.usecase.shared.hashing import hashed

# Logins that wait for a thread that hashes. Further ones are refused, so that a flood of them takes no memory.
_MAX_WAITING = 64

log = structlog.get_logger(__name__)


class Logins:
    def __init__(self, mirror: Watched, authenticator: Authenticator) -> None:
        self._mirror = mirror
        self._authenticator = authenticator
        self._limit = LoginLimit()
        self._num_waiting = 0

    def check_address(self, peer: str) -> None:
        """Refuses a login before its message is read. Raises GanglineError `auth.too_many_logins`."""
        self._limit.check_address(peer, time.monotonic())

    def fail_address(self, peer: str) -> None:
        """Counts a login whose message could not be read."""
        self._limit.fail_address(peer, time.monotonic())

    async def log_in(self, name: str, password: str, peer: str, *, is_determined: bool = False) -> Session:
        """Opens a session. password: as clients hash it. peer: the address of the caller. Raises GanglineError
        `auth.wrong_password`, `auth.inactive`, `auth.too_many_logins`."""
        now = time.monotonic()
        # JSON can hold half of a surrogate pair, which no hash and no log takes. No password and no name has one.
        name, password = (text.encode(errors="replace").decode() for text in (name, password))
        self._limit.check(peer, name, now)
        self._limit.begin(peer, name, now)
        user = self._mirror.state.users.find(keys.user(name))
        attempt = current_attempt()
        # A name that no user has may be a password that was typed in its place.
        if attempt is not None and user is not None:
            attempt.name_object("user", user.name)
        if not await self._is_right(user, password) or user is None:
            log.info("a login was refused", name=name[:64], peer=peer)
            raise GanglineError(
                "auth.wrong_password",
                f"{name[:64]!r} is no user of this cluster, or the password is wrong; an administrator can also log in "
                "as 'admin' with the content of the admin token file as the password",
                ErrorKind.FORBIDDEN,
            )
        self._limit.succeed(peer, name, time.monotonic())
        if user.is_deactivated:
            # Determined's client takes 401 for a session that has ended, and hides the message.
            raise GanglineError(
                "auth.inactive", f"user {user.name} is deactivated; ask an administrator", ErrorKind.FORBIDDEN
            )
        token, ends_at = self._authenticator.open_session(user, is_determined=is_determined)
        if attempt is not None:
            attempt.log_in(user.name)
        return Session(token, float(ends_at), view_user(user))

    def identify_key(self, key: str, peer: str) -> Principal:
        """Returns the user of a one-time key that was not used. A wrong one counts as a wrong password of this address.
        peer: the address of the caller. Raises GanglineError `auth.key`, `auth.inactive`."""
        try:
            principal = principal_of(self._authenticator.check_key(key)[0])
        except GanglineError:
            self.fail_address(peer)
            raise
        attempt = current_attempt()
        if attempt is not None:
            attempt.log_in(principal.name)
        return principal

    async def _is_right(self, user: User | None, password: str) -> bool:
        """Compares a password. It takes as long for a name without a user."""
        if user is not None and user.login_sha256 and is_same_token(user.login_sha256, hash_token(password)):
            return True
        if self._num_waiting >= _MAX_WAITING:
            raise GanglineError(
                "auth.too_many_logins",
                "too many logins are being checked at this gateway; try again in a moment, or use a token",
                ErrorKind.FORBIDDEN,
            )
        stored = user.password_hash if user is not None and user.password_hash else UNKNOWN
        self._num_waiting += 1
        try:
            is_right = await hashed(is_password, stored, password)
        finally:
            self._num_waiting -= 1
        return is_right and stored is not UNKNOWN
