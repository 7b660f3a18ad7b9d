"""Users and tokens: logins by password, lists, and the changes that the leader makes.

A password arrives here as clients hash it, and leaves for the leader as it is stored. It is in no log and no error.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import structlog

from gangline.domain.user import (
    AccessToken,
    AccessTokenView,
    Session,
    User,
    UserChange,
    UserView,
    check_hashed,
    no_token,
    no_user,
    view_token,
    view_user,
)
from gangline.errors import ErrorKind, GanglineError, invalid
from gangline.protocol import wire
from gangline.v1 import user_pb2
from services.common import keys
from services.common.access.password import SALT_BYTES, UNKNOWN, is_password, store_password
from services.common.access.security import access_token, hash_token, is_same_token
from services.common.server import Principal
from services.gateway.leader.leader_client import Leader
from services.gateway.mirror.auth import CLUSTER, Authenticator, check_admin, check_user
from services.gateway.mirror.mirror import Watched
from services.gateway.usecase.login_limit import LoginLimit

# Passwords that are hashed at a time. Each takes 16 MiB and a processor for 0.2 s.
_MAX_HASHING = 2
_hashing = ThreadPoolExecutor(_MAX_HASHING, thread_name_prefix="hashing")
# Logins that wait for that. Further ones are refused, so that a flood of them takes no memory.
_MAX_WAITING = 64

log = structlog.get_logger(__name__)


T = TypeVar("T")


async def _hashed(work: Callable[..., T], *arguments: object) -> T:
    """Runs work that hashes a password. A caller that is cancelled while it waits leaves the queue."""
    return await asyncio.get_running_loop().run_in_executor(_hashing, work, *arguments)


class Users:
    def __init__(self, mirror: Watched, leader: Leader, cluster_token: str) -> None:
        self._mirror = mirror
        self._leader = leader
        self._cluster_token = cluster_token
        self._authenticator = Authenticator(mirror, cluster_token)
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
        return Session(token, float(ends_at), view_user(user))

    async def log_out(self, principal: Principal, request_id: str, token: str) -> None:
        """Ends the session of this token at every gateway. Does nothing for a token of another kind."""
        check_user(principal)
        session = self._authenticator.read_session(token)
        if session is None:
            return
        request = user_pb2.SchedulerServiceEndSessionRequest(session_sha256=hash_token(token), ends_at=session[1])
        await self._leader.change(principal, request_id, lambda scheduler: scheduler.EndSession, request)

    def me(self, principal: Principal) -> UserView:
        """Returns the caller. The cluster itself has the id 0."""
        check_user(principal)
        user = self._mirror.state.users.find(keys.user(principal.name)) if principal.kind == "user" else None
        return view_user(user) if user is not None else UserView(0, CLUSTER.name, is_admin=True)

    def list_users(self, principal: Principal) -> list[UserView]:
        """Returns all users, the oldest first."""
        return [view_user(user) for user in self._authenticator.list_users(principal)]

    async def find(self, principal: Principal, name: str) -> UserView:
        """Raises GanglineError `user.not_found`."""
        check_user(principal)
        user = self._mirror.state.users.find(keys.user(name))
        if user is None:
            # Another gateway may have answered for it before this one has seen it.
            await self._mirror.confirm(keys.user(name))
            user = self._mirror.state.users.find(keys.user(name))
        if user is None:
            raise no_user(name)
        return view_user(user)

    def find_by_id(self, principal: Principal, user_id: int) -> UserView:
        """Raises GanglineError `user.not_found`."""
        for view in self.list_users(principal):
            if self._authenticator.number_of_user(view.name) == user_id:
                return view
        raise no_user(str(user_id))

    async def create(self, principal: Principal, request_id: str, change: UserChange) -> UserView:
        """Creates a user. change.password: as clients hash it. Raises GanglineError `auth.not_admin`, `user.*`."""
        check_admin(principal, "create users")
        request = user_pb2.SchedulerServiceCreateUserRequest(
            change=wire.to_proto(await self._with_stored_password(change)), is_admin=principal.is_admin
        )
        answer = await self._leader.change(principal, request_id, lambda scheduler: scheduler.CreateUser, request)
        return wire.from_proto(UserView, answer.created)

    async def update(self, principal: Principal, request_id: str, name: str, change: UserChange) -> UserView:
        """Changes a user. Users change their own password and displayed name; all else is for administrators.

        Raises GanglineError `user.*`, `auth.not_admin`.
        """
        check_user(principal)
        if principal.name != name:
            check_admin(principal, "change other users")
        request = user_pb2.SchedulerServiceUpdateUserRequest(
            name=name, change=wire.to_proto(await self._with_stored_password(change)), is_admin=principal.is_admin
        )
        answer = await self._leader.change(principal, request_id, lambda scheduler: scheduler.UpdateUser, request)
        return wire.from_proto(UserView, answer.changed)

    def list_tokens(
        self, principal: Principal, user_name: str = "", *, with_ended: bool = False
    ) -> list[AccessTokenView]:
        """Returns tokens, the newest first: the caller's own; an administrator's call returns those of all users.

        user_name: limits them to one user. with_ended: revoked and expired ones, too. Raises GanglineError
        `user.not_found`, and `auth.not_admin` for another user's name.
        """
        check_user(principal)
        if user_name and user_name != principal.name:
            check_admin(principal, "see the tokens of others")
            if self._mirror.state.users.find(keys.user(user_name)) is None:
                raise no_user(user_name)
        if not user_name and not principal.is_admin:
            user_name = principal.name
        now = time.time()
        views = [
            view_token(token, name)
            for token, name in self._tokens()
            if user_name in ("", name) and (with_ended or not token.ended_at(now))
        ]
        return sorted(views, key=lambda view: -view.id)

    async def create_token(
        self,
        principal: Principal,
        request_id: str,
        user_name: str = "",
        name: str = "",
        lifespan_seconds: float = 0.0,
        *,
        is_determined: bool = False,
    ) -> tuple[AccessTokenView, str]:
        """Makes a token. Returns it with its text, which a call with the same request id returns again.

        user_name: empty for the caller. lifespan_seconds: 0 for 30 days, negative for no end. Raises GanglineError
        `token.*`, `user.*`, `auth.not_admin`.
        """
        check_user(principal)
        owner = user_name or principal.name
        if owner == CLUSTER.name:
            raise invalid("token.no_user", "the cluster's own token makes tokens for users; name the user")
        if owner != principal.name:
            check_admin(principal, "make tokens for others")
        request = user_pb2.SchedulerServiceCreateTokenRequest(
            owner=owner,
            name=name,
            lifespan_seconds=lifespan_seconds,
            is_admin=principal.is_admin,
            is_determined=is_determined,
        )
        answer = await self._leader.change(principal, request_id, lambda scheduler: scheduler.CreateToken, request)
        view = wire.from_proto(AccessTokenView, answer.token)
        return view, access_token(self._cluster_token, view.id, request_id, is_determined=is_determined)

    async def revoke_token(self, principal: Principal, request_id: str, token_id: int) -> AccessTokenView:
        """Revokes a token of the caller; administrators revoke any. Raises GanglineError `token.not_found`."""
        check_user(principal)
        request = user_pb2.SchedulerServiceRevokeTokenRequest(token_id=token_id, is_admin=principal.is_admin)
        answer = await self._leader.change(principal, request_id, lambda scheduler: scheduler.RevokeToken, request)
        return wire.from_proto(AccessTokenView, answer.token)

    def find_token(self, principal: Principal, token_id: int) -> AccessTokenView:
        """Raises GanglineError `token.not_found`, also for a token that the caller may not see."""
        for view in self.list_tokens(principal, with_ended=True):
            if view.id == token_id:
                return view
        raise no_token(token_id)

    def _tokens(self) -> Iterator[tuple[AccessToken, str]]:
        state = self._mirror.state
        names = {user.id: user.name for user in state.users.all()}
        return ((token, names.get(token.user_id, "")) for token in state.tokens.all())

    async def _with_stored_password(self, change: UserChange) -> UserChange:
        if not change.password:
            return change
        check_hashed(change.password)
        salt, password = secrets.token_bytes(SALT_BYTES), change.password
        return replace(change, password=await _hashed(store_password, password, salt))

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
            is_right = await _hashed(is_password, stored, password)
        finally:
            self._num_waiting -= 1
        return is_right and stored is not UNKNOWN
