"""Maps a token to a principal. `access_table.py` and `caller.py` decide what the principal may call.

A token is one of five: a user's (its sha256 is in the mirror), the cluster's own (services and operators), one of an
allocation (for its trial runners), one of an agent (for the records of ended attempts on its host), or one of a
session, which a user opens with a password. Tokens are compared in
constant time, or by their sha256, and never logged. Each call is judged by the mirror's present users and tokens, so
whatever ends them holds from the moment at which the mirror has seen it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from gangline.domain.user import CLUSTER_NAME, AccessToken, User, inactive_user
from gangline.errors import Effect, GanglineError, invalid, unauthenticated, unavailable
from services.common import keys
from services.common.access.security import (
    check_allocation_token,
    check_drain_token,
    check_one_time_key,
    check_session_token,
    hash_token,
    is_allocation_token,
    is_drain_token,
    is_same_token,
    is_session_token,
    key_over,
    one_time_key,
    session_over,
    session_token,
    user_of_key,
    user_of_session,
)
from services.common.server import Principal
from services.gateway.mirror.access_table import NEED_BY_CALL, USER_SERVICE, Need, check_call
from services.gateway.mirror.admission_watch import AdmissionWatch
from services.gateway.mirror.mirror import Watched

# As long as Determined's.
SESSION_SECONDS = 7 * 24 * 3600
KEY_SECONDS = 600
CLUSTER = Principal(kind="cluster", name=CLUSTER_NAME, is_admin=True)


class Authenticator:
    def __init__(self, mirror: Watched, cluster_token: str) -> None:
        self._mirror = mirror
        self._cluster_token = cluster_token
        self.streams = AdmissionWatch()

    def watch(self, token: str | None, end: Callable[[GanglineError], object]) -> AbstractContextManager[None]:
        """Returns the context of a stream, which `end` ends when its caller's token does."""
        return self.streams.watched(lambda: self.identify(token), end, token)

    async def authenticate(self, method: str, token: str | None) -> Principal:
        """Authenticates a call for the gRPC server, which calls this for every method."""
        need = NEED_BY_CALL.get(method)
        if need is Need.OPEN:
            return Principal(kind="anonymous", name="")
        principal = self.identify(token)
        if not method.startswith(USER_SERVICE):
            # Calls of users are checked where a refusal leaves a record of the audit log (`recorded_calls.py`).
            check_call(need, principal, self._mirror.state)
        return principal

    def identify(self, token: str | None) -> Principal:
        """Returns the principal of a token. Raises GanglineError `auth.*`."""
        if not token:
            raise unauthenticated(
                "auth.no_token",
                "this call needs a token; set GANGLINE_TOKEN, or send Authorization: Bearer TOKEN over HTTP",
            )
        if is_allocation_token(token):
            allocation_id = check_allocation_token(self._cluster_token, token)
            return Principal(kind="allocation", name=allocation_id, is_admin=False)
        if is_drain_token(token):
            return Principal(kind="agent", name=check_drain_token(self._cluster_token, token))
        if is_session_token(token):
            return self._identify_session(token)
        if is_same_token(token, self._cluster_token):
            return CLUSTER
        return self._identify_user(hash_token(token))

    def open_session(self, user: User, *, is_determined: bool, ends_before: float = math.inf) -> tuple[str, int]:
        """Returns the token of a new session of a user who has given the right password, and when it ends in Unix
        seconds."""
        # A session that began in the second in which all of them ended would have ended, too.
        begins_at = max(int(time.time()), math.ceil(user.sessions_since))
        ends_at = int(min(begins_at + SESSION_SECONDS, ends_before))
        token = session_token(self._cluster_token, user.name, _login_hash(user), ends_at, is_determined=is_determined)
        return token, ends_at

    def make_key(self, principal: Principal, token: str) -> tuple[str, int]:
        """Returns a key that opens one session of the user, and when it ends in Unix seconds.

        token: the caller's. Where it is a session's, the new one ends with it, so no session prolongs itself. Raises
        GanglineError `auth.no_user` for a caller who is no user.
        """
        user = self._find_user(principal.name) if principal.kind == "user" else None
        if user is None:
            raise invalid("auth.no_user", "the cluster's own token opens no session; use the token of a user")
        ends_at = max(int(time.time()), math.ceil(user.sessions_since)) + KEY_SECONDS
        session = self.read_session(token)
        session_ends_at = session[1] if session is not None else ends_at + SESSION_SECONDS
        return one_time_key(self._cluster_token, user.name, _login_hash(user), ends_at, session_ends_at), ends_at

    def check_key(self, key: str) -> tuple[User, int, int]:
        """Returns the user of a key that was not used as far as this gateway knows, when the key ends, and when its
        session ends at the latest. The leader decides whether it was used. Raises GanglineError `auth.key`,
        `auth.inactive`."""
        user = self._find_user(user_of_key(key))
        ends_at, session_ends_at = check_one_time_key(
            self._cluster_token, key, _login_hash(user) if user else "", time.time()
        )
        assert user is not None, "a user that is not there has no valid key"
        if _is_ended(user, key) or ends_at - KEY_SECONDS < user.sessions_since:
            raise key_over()
        principal_of(user)
        return user, ends_at, session_ends_at

    def read_session(self, token: str) -> tuple[str, int] | None:
        """Returns the user of a session that is open, and when it ends in Unix seconds; None for other tokens. Raises
        GanglineError `auth.*`."""
        if not is_session_token(token):
            return None
        return self._check_session(token)[0].name, self._check_session(token)[1]

    def number_of_user(self, name: str) -> int:
        """Returns the id that Determined's client has for a user; 0 for none of them."""
        user = self._find_user(name)
        # A leader of an earlier version gives no ids, and has one user.
        return (user.id or 1) if user is not None else 0

    def _identify_session(self, token: str) -> Principal:
        return principal_of(self._check_session(token)[0])

    def _check_session(self, token: str) -> tuple[User, int]:
        """Returns the user of a session that is open, and when it ends."""
        user = self._find_user(user_of_session(token))
        ends_at = check_session_token(self._cluster_token, token, _login_hash(user) if user else "", time.time())
        assert user is not None, "a user that is not there has no valid session"
        if _is_ended(user, token) or ends_at - SESSION_SECONDS < user.sessions_since:
            raise session_over()
        return user, ends_at

    def _find_user(self, name: str) -> User | None:
        return self._mirror.state.users.find(keys.user(name))

    def _identify_user(self, token_sha256: str) -> Principal:
        users, found = self._mirror.state.users, None
        # The time of a look-up by sha256 reveals nothing of the token that has it.
        for token in self._mirror.state.tokens.of(token_sha256):
            found = self._owner_of(token)
        # The loop goes on after a match, so that its time does not depend on which user calls.
        for user in users.all() if found is None else ():
            if user.token_sha256 and is_same_token(user.token_sha256, token_sha256):
                found = user
        if found is not None:
            return principal_of(found)
        # The first leader creates the first users.
        if not len(users):
            raise unavailable(
                "auth.no_users",
                "this cluster has no users yet because no scheduler has ever led it; start a scheduler",
                Effect.NONE,
            )
        raise unauthenticated(
            "auth.wrong_token",
            "this token belongs to no user of this cluster; "
            "log in again with `gangline login`, or correct GANGLINE_TOKEN",
        )

    def _owner_of(self, token: AccessToken) -> User | None:
        """Returns the user of a token that holds; None where it is unknown. Raises GanglineError `auth.token_ended`."""
        if token.ended_at(time.time()):
            ending = "was revoked" if token.revoked_at else "has expired"
            raise unauthenticated("auth.token_ended", f"this token {ending}; log in again, or make another token")
        return next(iter(self._mirror.state.users.of(token.user_id)), None)


def principal_of(user: User) -> Principal:
    """Returns the principal of a user. Raises GanglineError `auth.inactive`."""
    if user.is_deactivated:
        raise inactive_user(user.name)
    return Principal(kind="user", name=user.name, is_admin=user.is_admin)


def _is_ended(user: User, token: str) -> bool:
    """Returns whether the user has ended this session, or has used this key."""
    return bool(user.ended_sessions) and hash_token(token) in (s.session_sha256 for s in user.ended_sessions)


def _login_hash(user: User) -> str:
    """Returns the hash of all with which the user can log in. When it changes, all sessions of the user end."""
    return hash_token(user.login_sha256 + user.password_hash) if user.password_hash else user.login_sha256
