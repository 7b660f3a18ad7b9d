"""Maps a token to a principal, and decides what that principal may call.

A token is one of four: a user's (its sha256 is in the mirror), the cluster's own (services and operators), one of an
allocation (for its trial runners), or one of a session, which a client of Determined opens with a user's token as the
password. Tokens are compared in constant time and never logged.
"""

from __future__ import annotations

import time

from gangline.domain.experiment import Experiment
from gangline.domain.id import describe_allocation, parse_allocation_id
from gangline.domain.resource import User
from gangline.errors import Effect, ErrorKind, GanglineError, unauthenticated, unavailable
from services.common.security import (
    check_allocation_token,
    check_session_token,
    hash_token,
    is_allocation_token,
    is_same_token,
    is_session_token,
    session_token,
    task_code,
    user_of_session,
)
from services.common.server import Principal
from services.gateway.mirror.mirror import Watched

# As long as Determined's.
SESSION_SECONDS = 7 * 24 * 3600
CLUSTER = Principal(kind="cluster", name="cluster", is_admin=True)


class Authenticator:
    def __init__(self, mirror: Watched, cluster_token: str) -> None:
        self._mirror = mirror
        self._cluster_token = cluster_token

    async def authenticate(self, _: str, token: str | None) -> Principal:
        """Authenticates a call for the gRPC server, which calls this for every method."""
        return self.identify(token)

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
        if is_session_token(token):
            return self._identify_session(token)
        if is_same_token(token, self._cluster_token):
            return CLUSTER
        return self._identify_user(hash_token(token))

    def log_in(self, name: str, password: str) -> str:
        """Returns the token of a new session. password: as the client of Determined sends it. Raises GanglineError
        `auth.wrong_password`."""
        user = self._find_user(name)
        is_right = is_same_token(user.login_sha256 if user else "", hash_token(password))
        if user is None or not is_right:
            raise GanglineError(
                "auth.wrong_password",
                f"{name[:64]!r} is no user of this cluster, or the password is not this user's token; an administrator "
                "logs in as 'admin', with the content of the admin token file as the password",
                ErrorKind.FORBIDDEN,
            )
        return session_token(self._cluster_token, name, user.login_sha256, int(time.time()) + SESSION_SECONDS)

    def list_users(self, principal: Principal) -> list[User]:
        """Returns all users, the oldest first."""
        check_user(principal)
        return self._users()

    def find_user(self, name: str) -> User:
        """Returns a user; one without a record, such as the cluster itself, has a name alone."""
        return self._find_user(name) or User(name, "", is_admin=name == CLUSTER.name)

    def number_of_user(self, name: str) -> int:
        """Returns the id that Determined's client has for a user: its place among all users; 0 for none of them."""
        return next((number for number, user in enumerate(self._users(), 1) if user.name == name), 0)

    def task_code(self, principal: Principal, experiment: Experiment) -> str:
        """Returns the code in the id of a task; empty for callers that are neither its owner nor administrators."""
        is_own = principal.is_admin or principal.name == experiment.owner
        return task_code(self._cluster_token, experiment.id) if is_own else ""

    def _users(self) -> list[User]:
        return sorted(self._mirror.state.users.all(), key=lambda user: (user.created_at, user.name))

    def _identify_session(self, token: str) -> Principal:
        user = self._find_user(user_of_session(token))
        check_session_token(self._cluster_token, token, user.login_sha256 if user else "", time.time())
        assert user is not None, "a user that is not there has no valid session"
        return Principal(kind="user", name=user.name, is_admin=user.is_admin)

    def _find_user(self, name: str) -> User | None:
        return next((user for user in self._mirror.state.users.all() if user.name == name), None)

    def _identify_user(self, token_sha256: str) -> Principal:
        principal: Principal | None = None
        users = self._mirror.state.users
        # The loop goes on after a match, so that its time does not depend on which user calls.
        for user in users.all():
            if is_same_token(user.token_sha256, token_sha256):
                principal = Principal(kind="user", name=user.name, is_admin=user.is_admin)
        if principal is not None:
            return principal
        # The first leader creates the first users.
        if not len(users):
            raise unavailable(
                "auth.no_users",
                "this cluster has no users yet because no scheduler has ever led it; start gangline-scheduler",
                Effect.NONE,
            )
        raise unauthenticated("auth.wrong_token", "this token belongs to no user of this cluster; check GANGLINE_TOKEN")


def check_user(principal: Principal) -> None:
    """Admits calls of users and their tools. Raises GanglineError `auth.forbidden`."""
    if principal.kind == "allocation":
        raise GanglineError(
            "auth.forbidden", "the token of an allocation may only deliver its trial's records", ErrorKind.FORBIDDEN
        )


def check_admin(principal: Principal, action: str) -> None:
    """Admits calls that affect all users' work. action: the attempted change. Raises GanglineError `auth.not_admin`."""
    check_user(principal)
    if not principal.is_admin:
        raise GanglineError(
            "auth.not_admin",
            f"{principal.name} is no administrator, and only those may {action}; ask one of them",
            ErrorKind.FORBIDDEN,
        )


def check_owner(principal: Principal, owner: str, action: str) -> None:
    """Admits changes that take a user's work away. Raises GanglineError `auth.not_owner`."""
    check_user(principal)
    if not principal.is_admin and principal.name != owner:
        raise GanglineError(
            "auth.not_owner",
            f"{principal.name} may not {action}: only {owner} and administrators may; ask one of them",
            ErrorKind.FORBIDDEN,
        )


def check_trial(principal: Principal, trial_id: str, allocation_id: str) -> None:
    """Admits deliveries of trial runners, each for its own allocation only. Raises GanglineError `auth.forbidden`."""
    is_own = (
        principal.kind == "allocation"
        and principal.name == allocation_id
        and parse_allocation_id(allocation_id)[0] == trial_id
    )
    if principal.kind != "cluster" and not is_own:
        raise GanglineError(
            "auth.forbidden",
            f"{principal.kind} {principal.name} may not deliver for {describe_allocation(allocation_id)}",
            ErrorKind.FORBIDDEN,
        )
