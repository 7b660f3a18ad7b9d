"""The calls of GatewayService about logins, users and tokens."""

# ruff: noqa: N802  the methods are named by the proto

from __future__ import annotations

from typing import Any

from gangline.domain.user import UserChange
from gangline.protocol import wire
from gangline.protocol.rpc import find_token
from gangline.v1 import user_pb2 as pb
from gangline.v1.gateway_pb2_grpc import GatewayServiceServicer
from services.common.connection.peer import peer_host
from services.common.server import current_principal
from services.gateway.usecase.bundle import UseCases

Context = Any


class UserCalls(GatewayServiceServicer):
    """Base of the service, which provides the use cases."""

    _usecases: UseCases

    async def LogIn(self, request: pb.LogInRequest, context: Context) -> pb.LogInResponse:
        session = await self._usecases.users.log_in(request.name, request.password, peer_host(context.peer()))
        return pb.LogInResponse(token=session.token, ends_at=session.ends_at, user=wire.to_proto(session.user))

    async def LogOut(self, request: pb.LogOutRequest, context: Context) -> pb.LogOutResponse:
        token = find_token(context.invocation_metadata()) or ""
        await self._usecases.users.log_out(current_principal(), request.request_id, token)
        return pb.LogOutResponse()

    async def GetMe(self, request: pb.GetMeRequest, context: Context) -> pb.GetMeResponse:
        return pb.GetMeResponse(user=wire.to_proto(self._usecases.users.me(current_principal())))

    async def ListUsers(self, request: pb.ListUsersRequest, context: Context) -> pb.ListUsersResponse:
        views = self._usecases.users.list_users(current_principal())
        return pb.ListUsersResponse(users=[wire.to_proto(view) for view in views])

    async def CreateUser(self, request: pb.CreateUserRequest, context: Context) -> pb.CreateUserResponse:
        change = wire.from_proto(UserChange, request.change)
        view = await self._usecases.users.create(current_principal(), request.request_id, change)
        return pb.CreateUserResponse(user=wire.to_proto(view))

    async def UpdateUser(self, request: pb.UpdateUserRequest, context: Context) -> pb.UpdateUserResponse:
        change = wire.from_proto(UserChange, request.change)
        view = await self._usecases.users.update(current_principal(), request.request_id, request.name, change)
        return pb.UpdateUserResponse(user=wire.to_proto(view))

    async def ListTokens(self, request: pb.ListTokensRequest, context: Context) -> pb.ListTokensResponse:
        views = self._usecases.users.list_tokens(current_principal(), request.user_name, with_ended=request.with_ended)
        return pb.ListTokensResponse(tokens=[wire.to_proto(view) for view in views])

    async def CreateToken(self, request: pb.CreateTokenRequest, context: Context) -> pb.CreateTokenResponse:
        view, secret = await self._usecases.users.create_token(
            current_principal(), request.request_id, request.user_name, request.name, request.lifespan_seconds
        )
        return pb.CreateTokenResponse(token=wire.to_proto(view), secret=secret)

    async def RevokeToken(self, request: pb.RevokeTokenRequest, context: Context) -> pb.RevokeTokenResponse:
        view = await self._usecases.users.revoke_token(current_principal(), request.request_id, request.token_id)
        return pb.RevokeTokenResponse(token=wire.to_proto(view))
