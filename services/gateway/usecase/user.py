"""Users and tokens: lists, logouts, and the changes that the leader makes.

A password arrives here as clients hash it, and leaves for the leader as it is stored. It is in no log and no error.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import replace

from gangline.domain.user import (
    AccessToken,
    AccessTokenView,
    OneTimeKey,
    Session,
    UserChange,
    UserView,
    check_hashed,
    no_token,
    no_user,
    view_token,
    view_user,
)
from gangline.errors import invalid
from gangline.protocol import wire
from gangline.v1 import user_pb2
from services.common import keys
from services.common.access.password import SALT_BYTES, store_password
from services.common.access.security import access_token, hash_token, key_over
from services.gateway.leader.leader_client import Leader
from services.gateway.mirror.auth import CLUSTER, Authenticator
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched
from services.gateway.usecase.shared.hashing import hashed


class Users:
    def __init__(
        self, caller: Caller, mirror: Watched, leader: Leader, *, authenticator: Authenticator, cluster_token: str
    ) -> None:
        self._caller = caller
        self._mirror = mirror
        self._leader = leader
        self._authenticator = authenticator
        self._cluster_token = cluster_token

    async def log_out(self, token: str) -> None:
        """Ends the session of this token at every gateway. Does nothing for a token of another kind."""
        session = self._authenticator.read_session(token)
        if session is None:
            return
        request = user_pb2.SchedulerServiceEndSessionRequest(session_sha256=hash_token(token), ends_at=session[1])
        await self._leader.change(self._caller, lambda scheduler: scheduler.EndSession, request)

    async def log_out_everywhere(self) -> None:
        """Ends all sessions and one-time keys of the caller. Does nothing for the cluster's own token."""
        request = user_pb2.SchedulerServiceEndSessionRequest(is_everywhere=True)
        await self._leader.change(self._caller, lambda scheduler: scheduler.EndSession, request)

    def create_key(self, token: str) -> OneTimeKey:
        """Returns a key that opens one session of the caller in a browser. token: the caller's. Raises GanglineError
        `auth.no_user`."""
        key, ends_at = self._authenticator.make_key(self._caller.principal, token)
        gateways = (instance for instance in self._mirror.state.instances.all() if instance.http_address)
        oldest_first = sorted(gateways, key=lambda gateway: (gateway.started_at, gateway.id))
        return OneTimeKey(key, float(ends_at), tuple(gateway.http_address for gateway in oldest_first))

    async def use_key(self, key: str) -> Session:
        """Opens the session of a key, and ends the key at every gateway. The leader ends it once, so of several uses at
        the same time one opens a session. Raises GanglineError `auth.key`."""
        user, ends_at, session_ends_at = self._authenticator.check_key(key)
        request = user_pb2.SchedulerServiceEndSessionRequest(session_sha256=hash_token(key), ends_at=ends_at)
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.EndSession, request)
        if answer.was_ended:
            raise key_over()
        user = self._mirror.state.users.find(keys.user(user.name)) or user
        token, found_end = self._authenticator.open_session(user, is_determined=False, ends_before=session_ends_at)
        return Session(token, float(found_end), view_user(user))

    def me(self) -> UserView:
        """Returns the caller. The cluster itself has the id 0."""
        is_user = self._caller.principal.kind == "user"
        user = self._mirror.state.users.find(keys.user(self._caller.name)) if is_user else None
        return view_user(user) if user is not None else UserView(0, CLUSTER.name, is_admin=True)

    def list_users(self) -> list[UserView]:
        """Returns all users, the oldest first."""
        users = sorted(self._mirror.state.users.all(), key=lambda user: (user.id, user.created_at, user.name))
        return [view_user(user) for user in users]

    async def find(self, name: str) -> UserView:
        """Raises GanglineError `user.not_found`."""
        user = self._mirror.state.users.find(keys.user(name))
        if user is None:
            # Another gateway may have answered for it before this one has seen it.
            await self._mirror.confirm(keys.user(name))
            user = self._mirror.state.users.find(keys.user(name))
        if user is None:
            raise no_user(name)
        return view_user(user)

    def find_by_id(self, user_id: int) -> UserView:
        """Raises GanglineError `user.not_found`."""
        for view in self.list_users():
            if self._authenticator.number_of_user(view.name) == user_id:
                return view
        raise no_user(str(user_id))

    async def create(self, change: UserChange) -> UserView:
        """Creates a user. change.password: as clients hash it. Raises GanglineError `auth.not_admin`, `user.*`."""
        self._caller.check_admin("create users")
        request = user_pb2.SchedulerServiceCreateUserRequest(
            change=wire.to_proto(await self._with_stored_password(change)), is_admin=self._caller.is_admin
        )
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.CreateUser, request)
        return wire.from_proto(UserView, answer.created)

    async def update(self, name: str, change: UserChange) -> UserView:
        """Changes a user. Users change their own password and displayed name; all else is for administrators.

        Raises GanglineError `user.*`, `auth.not_admin`.
        """
        if self._caller.name != name:
            self._caller.check_admin("change other users")
        request = user_pb2.SchedulerServiceUpdateUserRequest(
            name=name, change=wire.to_proto(await self._with_stored_password(change)), is_admin=self._caller.is_admin
        )
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.UpdateUser, request)
        return wire.from_proto(UserView, answer.changed)

    def list_tokens(self, user_name: str = "", *, with_ended: bool = False) -> list[AccessTokenView]:
        """Returns tokens, the newest first: the caller's own; an administrator's call returns those of all users.

        user_name: limits them to one user. with_ended: revoked and expired ones, too. Raises GanglineError
        `user.not_found`, and `auth.not_admin` for another user's name.
        """
        if user_name and user_name != self._caller.name:
            self._caller.check_admin("see the tokens of others")
            if self._mirror.state.users.find(keys.user(user_name)) is None:
                raise no_user(user_name)
        if not user_name and not self._caller.is_admin:
            user_name = self._caller.name
        now = time.time()
        views = [
            view_token(token, name)
            for token, name in self._tokens()
            if user_name in ("", name) and (with_ended or not token.ended_at(now))
        ]
        return sorted(views, key=lambda view: -view.id)

    async def create_token(
        self,
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
        owner = user_name or self._caller.name
        if owner == CLUSTER.name:
            raise invalid("token.no_user", "the cluster's own token makes tokens for users; name the user")
        if owner != self._caller.name:
            self._caller.check_admin("make tokens for others")
        request = user_pb2.SchedulerServiceCreateTokenRequest(
            owner=owner,
            name=name,
            lifespan_seconds=lifespan_seconds,
            is_admin=self._caller.is_admin,
            is_determined=is_determined,
        )
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.CreateToken, request)
        view = wire.from_proto(AccessTokenView, answer.token)
        return view, access_token(self._cluster_token, view.id, request.request_id, is_determined=is_determined)

    async def revoke_token(self, token_id: int) -> AccessTokenView:
        """Revokes a token of the caller; administrators revoke any. Raises GanglineError `token.not_found`."""
        request = user_pb2.SchedulerServiceRevokeTokenRequest(token_id=token_id, is_admin=self._caller.is_admin)
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.RevokeToken, request)
        return wire.from_proto(AccessTokenView, answer.token)

    def find_token(self, token_id: int) -> AccessTokenView:
        """Raises GanglineError `token.not_found`, also for a token that the caller may not see."""
        for view in self.list_tokens(with_ended=True):
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
        return replace(change, password=await hashed(store_password, password, salt))
