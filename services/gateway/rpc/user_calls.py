"""The calls of GatewayService about logins, users and tokens, and about what users did."""

# ruff: noqa: N802  the methods are named by the proto

from __future__ import annotations

from typing import Any

from gangline.domain.audit import AuditFilter
from gangline.domain.user import UserChange
from gangline.protocol import wire
from gangline.protocol.rpc import find_token
from gangline.v1 import audit_pb2
from gangline.v1 import user_pb2 as pb
from services.common.connection.peer import peer_host
from services.gateway.rpc.bound_calls import BoundCalls

Context = Any


class UserCalls(BoundCalls):
    async def LogIn(self, request: pb.LogInRequest, context: Context) -> pb.LogInResponse:
        session = await self._usecases.open.logins.log_in(request.name, request.password, peer_host(context.peer()))
        return pb.LogInResponse(token=session.token, ends_at=session.ends_at, user=wire.to_proto(session.user))

    async def LogOut(self, request: pb.LogOutRequest, context: Context) -> pb.LogOutResponse:
        token = find_token(context.invocation_metadata()) or ""
        users = self._cases(request).users
        await (users.log_out_everywhere() if request.is_everywhere else users.log_out(token))
        return pb.LogOutResponse()

    async def CreateKey(self, request: pb.CreateKeyRequest, context: Context) -> pb.CreateKeyResponse:
        token = find_token(context.invocation_metadata()) or ""
        return pb.CreateKeyResponse(key=wire.to_proto(self._cases(request).users.create_key(token)))

    async def GetMe(self, request: pb.GetMeRequest, context: Context) -> pb.GetMeResponse:
        return pb.GetMeResponse(user=wire.to_proto(self._cases(request).users.me()))

    async def ListUsers(self, request: pb.ListUsersRequest, context: Context) -> pb.ListUsersResponse:
        views = self._cases(request).users.list_users()
        return pb.ListUsersResponse(users=[wire.to_proto(view) for view in views])

    async def CreateUser(self, request: pb.CreateUserRequest, context: Context) -> pb.CreateUserResponse:
        change = wire.from_proto(UserChange, request.change)
        view = await self._cases(request).users.create(change)
        return pb.CreateUserResponse(user=wire.to_proto(view))

    async def UpdateUser(self, request: pb.UpdateUserRequest, context: Context) -> pb.UpdateUserResponse:
        change = wire.from_proto(UserChange, request.change)
        cases = self._cases(request)
        if request.kill_experiments:
            view, killed_ids = await cases.deactivations.run(request.name, change)
            return pb.UpdateUserResponse(user=wire.to_proto(view), killed_experiment_ids=killed_ids)
        view = await cases.users.update(request.name, change)
        return pb.UpdateUserResponse(user=wire.to_proto(view))

    async def ListTokens(self, request: pb.ListTokensRequest, context: Context) -> pb.ListTokensResponse:
        views = self._cases(request).users.list_tokens(request.user_name, with_ended=request.with_ended)
        return pb.ListTokensResponse(tokens=[wire.to_proto(view) for view in views])

    async def CreateToken(self, request: pb.CreateTokenRequest, context: Context) -> pb.CreateTokenResponse:
        view, secret = await self._cases(request).users.create_token(
            request.user_name, request.name, request.lifespan_seconds
        )
        return pb.CreateTokenResponse(token=wire.to_proto(view), secret=secret)

    async def RevokeToken(self, request: pb.RevokeTokenRequest, context: Context) -> pb.RevokeTokenResponse:
        view = await self._cases(request).users.revoke_token(request.token_id)
        return pb.RevokeTokenResponse(token=wire.to_proto(view))

    async def ListAudit(self, request: audit_pb2.ListAuditRequest, context: Context) -> audit_pb2.ListAuditResponse:
        wanted = wire.from_proto(AuditFilter, request.filter)
        records, following = await self._cases(request).audit.list(wanted, request.limit, request.before)
        return audit_pb2.ListAuditResponse(records=[wire.to_proto(record) for record in records], next=following)
