"""The calls of SchedulerService that change users, their sessions and their tokens. It logs no password and no hash."""

from __future__ import annotations

import time
from typing import Any

import structlog

from gangline.domain.user import AccessToken, User, UserChange, view_token, view_user
from gangline.errors import conflict
from gangline.protocol import wire
from gangline.v1 import scheduler_pb2_grpc, user_pb2
from services.common.access.security import access_token, hash_token
from services.scheduler.leader.leader_status import LeaderStatus
from services.scheduler.service.access import require_cluster
from services.scheduler.state.records import SchedulerState, get
from services.scheduler.transition.account.token_change import create_token, revoke_token, token_of_request
from services.scheduler.transition.account.user_change import (
    create_user,
    end_all_sessions,
    end_session,
    update_user,
    user_of_request,
)
from services.scheduler.transition.project.rule import Caller

_log = structlog.get_logger(__name__)


class UserChangeCalls(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Base of the service, which provides the leader's status."""

    _leader_status: LeaderStatus

    async def CreateUser(  # noqa: N802 - grpc's name
        self, request: user_pb2.SchedulerServiceCreateUserRequest, _context: Any
    ) -> user_pb2.SchedulerServiceCreateUserResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        change, caller = wire.from_proto(UserChange, request.change), Caller.of(request)
        now = time.time()
        await term.store.commit_asked(lambda records: create_user(records, change, caller, now))
        created = user_of_request(term.state, request.request_id)
        assert created is not None, "a new user remembers its request"
        _log.info("user is created", name=created.name, is_admin=created.is_admin, user=request.user)
        return user_pb2.SchedulerServiceCreateUserResponse(
            created=wire.to_proto(view_user(created)), revision=term.state.revision
        )

    async def UpdateUser(  # noqa: N802 - grpc's name
        self, request: user_pb2.SchedulerServiceUpdateUserRequest, _context: Any
    ) -> user_pb2.SchedulerServiceUpdateUserResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        change, caller = wire.from_proto(UserChange, request.change), Caller.of(request)
        written = await term.store.commit_asked(lambda records: update_user(records, request.name, change, caller))
        changed = user_of_request(term.state, request.request_id) or term.state.find(User, request.name)
        if changed is None:
            raise conflict("user.changed", f"{request.name} was renamed at the same time; list the users and try again")
        if written:
            fields = [field.name for field, _ in request.change.ListFields()]
            _log.info("user is changed", name=changed.name, fields=fields, user=request.user)
        return user_pb2.SchedulerServiceUpdateUserResponse(
            changed=wire.to_proto(view_user(changed)), revision=term.state.revision
        )

    async def EndSession(  # noqa: N802 - grpc's name
        self, request: user_pb2.SchedulerServiceEndSessionRequest, _context: Any
    ) -> user_pb2.SchedulerServiceEndSessionResponse:
        require_cluster()
        term, now = self._leader_status.require(), time.time()
        if request.is_everywhere:
            written = await term.store.commit_asked(lambda records: end_all_sessions(records, request.user, now))
        else:
            written = await term.store.commit_asked(
                lambda records: end_session(records, request.user, request.session_sha256, request.ends_at, now)
            )
        return user_pb2.SchedulerServiceEndSessionResponse(revision=term.state.revision, was_ended=not written)

    async def CreateToken(  # noqa: N802 - grpc's name
        self, request: user_pb2.SchedulerServiceCreateTokenRequest, _context: Any
    ) -> user_pb2.SchedulerServiceCreateTokenResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        now, cluster_token = time.time(), term.context.cluster_token

        def hash_of(token_id: int) -> str:
            return hash_token(
                access_token(cluster_token, token_id, request.request_id, is_determined=request.is_determined)
            )

        written = await term.store.commit_asked(
            lambda records: create_token(
                records,
                request.owner,
                request.name,
                request.lifespan_seconds,
                Caller.of(request),
                hash_of=hash_of,
                now=now,
            )
        )
        token = token_of_request(term.state, request.request_id)
        assert token is not None, "a new token remembers its request"
        if written:
            _log.info("token is created", token_id=token.id, owner=request.owner, user=request.user)
        return user_pb2.SchedulerServiceCreateTokenResponse(
            token=wire.to_proto(view_token(token, request.owner)), revision=term.state.revision
        )

    async def RevokeToken(  # noqa: N802 - grpc's name
        self, request: user_pb2.SchedulerServiceRevokeTokenRequest, _context: Any
    ) -> user_pb2.SchedulerServiceRevokeTokenResponse:
        require_cluster()
        term, now = self._leader_status.require(request.user), time.time()
        await term.store.commit_asked(lambda records: revoke_token(records, request.token_id, Caller.of(request), now))
        token = get(term.state, AccessToken, request.token_id)
        _log.info("token is revoked", token_id=token.id, user=request.user)
        return user_pb2.SchedulerServiceRevokeTokenResponse(
            token=wire.to_proto(view_token(token, _owner(term.state, token))), revision=term.state.revision
        )


def _owner(state: SchedulerState, token: AccessToken) -> str:
    return next((user.name for user in state.all_of(User) if user.id == token.user_id), "")
