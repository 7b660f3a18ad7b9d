"""The SDK's methods about users, their passwords and their tokens.

Client inherits them. scripts/generate_async_client.py writes async_user.py from this file. A password leaves the
process only as a hash (gangline.domain.user.hash_password).
"""

from __future__ import annotations

from gangline.client.call_message import new_request_id
from gangline.client.cluster_calls import ClusterCalls
from gangline.domain.user import (
    AccessTokenView,
    OneTimeKey,
    Session,
    UserChange,
    UserView,
    check_new_password,
    hash_password,
)
from gangline.protocol.wire import from_proto, to_proto
from gangline.v1 import user_pb2


class UserMethods(ClusterCalls):
    """Base of Client. Changes of others than oneself are for administrators, else they raise GanglineError
    `auth.not_admin`."""

    def log_in(self, name: str, password: str) -> Session:
        """Opens a session of 7 days. Its token is for another Client, as its `token`; this client keeps its own, which
        may be any text. Raises GanglineError `auth.wrong_password`, `auth.inactive`, `auth.too_many_logins`."""
        request = user_pb2.LogInRequest(name=name, password=hash_password(password))
        answer = self._connection.call(self._stub.LogIn, request)
        return Session(answer.token, answer.ends_at, from_proto(UserView, answer.user))

    def log_out(self, *, is_everywhere: bool = False) -> None:
        """Ends the session with whose token this client calls. Changes nothing for a token of another kind.

        is_everywhere: ends all sessions of this client's user, in browsers too. Access tokens stay.
        """
        request = user_pb2.LogOutRequest(request_id=new_request_id(), is_everywhere=is_everywhere)
        self._connection.call(self._stub.LogOut, request)

    def create_key(self) -> OneTimeKey:
        """Makes a key with which a browser opens one session of this client's user, within 10 minutes. Raises
        GanglineError `auth.no_user` for the cluster's own token."""
        return from_proto(OneTimeKey, self._connection.call(self._stub.CreateKey, user_pb2.CreateKeyRequest()).key)

    def who_am_i(self) -> UserView:
        """Returns the user whose token this client has."""
        return from_proto(UserView, self._connection.call(self._stub.GetMe, user_pb2.GetMeRequest()).user)

    def list_users(self) -> list[UserView]:
        """Returns all users, the oldest first."""
        answer = self._connection.call(self._stub.ListUsers, user_pb2.ListUsersRequest())
        return [from_proto(UserView, message) for message in answer.users]

    def create_user(
        self,
        name: str,
        password: str | None = None,
        *,
        is_admin: bool = False,
        display_name: str = "",
        request_id: str | None = None,
    ) -> UserView:
        """Creates a user; for administrators. password: of 8 characters or more; None for a user who has tokens only.

        Raises GanglineError `user.name`, `user.exists`, `user.password`.
        """
        change = UserChange(name, display_name, is_admin, password=_hashed(password) if password is not None else None)
        request = user_pb2.CreateUserRequest(request_id=request_id or new_request_id(), change=to_proto(change))
        return from_proto(UserView, self._connection.call(self._stub.CreateUser, request).user)

    def edit_user(
        self,
        name: str,
        *,
        new_name: str | None = None,
        display_name: str | None = None,
        is_admin: bool | None = None,
        request_id: str | None = None,
    ) -> UserView:
        """Changes a user; None leaves a value as it is. Raises GanglineError `user.not_found`, `user.exists`, and
        `user.owns` for another name of a user who owns something."""
        return self._update_user(name, UserChange(new_name, display_name, is_admin), request_id)

    def activate_user(self, name: str, request_id: str | None = None) -> UserView:
        """Lets a deactivated user log in and call again."""
        return self._update_user(name, UserChange(is_active=True), request_id)

    def deactivate_user(self, name: str, request_id: str | None = None, *, kill_experiments: bool = False) -> UserView:
        """Ends what the user may do, also open streams and connections to tasks, within seconds. kill_experiments: also
        kills the user's experiments and tasks. Sessions and tokens hold again once the user is activated."""
        request = user_pb2.UpdateUserRequest(
            request_id=request_id or new_request_id(), name=name, kill_experiments=kill_experiments
        )
        request.change.is_active = False
        return from_proto(UserView, self._connection.call(self._stub.UpdateUser, request).user)

    def change_password(self, password: str, name: str = "", request_id: str | None = None) -> UserView:
        """Gives a user another password, which ends the sessions of this user. name: empty for oneself. Raises
        GanglineError `user.password`."""
        name = name or self.who_am_i().name
        return self._update_user(name, UserChange(password=_hashed(password)), request_id)

    def list_tokens(self, user: str = "", *, with_ended: bool = False) -> list[AccessTokenView]:
        """Returns one's own tokens, the newest first; an administrator gets those of all users. user: limits them to
        those of one user. with_ended: revoked and expired ones, too."""
        request = user_pb2.ListTokensRequest(user_name=user, with_ended=with_ended)
        answer = self._connection.call(self._stub.ListTokens, request)
        return [from_proto(AccessTokenView, message) for message in answer.tokens]

    def create_token(
        self, name: str = "", user: str = "", *, lifespan_seconds: float = 0.0, request_id: str | None = None
    ) -> tuple[AccessTokenView, str]:
        """Makes a token. Returns it with its text, which only a call with the same request_id gets again.

        name: what it is for. user: empty for oneself. lifespan_seconds: 0 for 30 days, negative for no end. Raises
        GanglineError `token.lifespan`, `token.too_many`.
        """
        request = user_pb2.CreateTokenRequest(
            request_id=request_id or new_request_id(), user_name=user, name=name, lifespan_seconds=lifespan_seconds
        )
        answer = self._connection.call(self._stub.CreateToken, request)
        return from_proto(AccessTokenView, answer.token), answer.secret

    def revoke_token(self, token_id: int, request_id: str | None = None) -> AccessTokenView:
        """Ends a token. Raises GanglineError `token.not_found`."""
        request = user_pb2.RevokeTokenRequest(request_id=request_id or new_request_id(), token_id=token_id)
        return from_proto(AccessTokenView, self._connection.call(self._stub.RevokeToken, request).token)

    def _update_user(self, name: str, change: UserChange, request_id: str | None) -> UserView:
        request = user_pb2.UpdateUserRequest(
            request_id=request_id or new_request_id(), name=name, change=to_proto(change)
        )
        return from_proto(UserView, self._connection.call(self._stub.UpdateUser, request).user)


def _hashed(password: str) -> str:
    check_new_password(password)
    return hash_password(password)
