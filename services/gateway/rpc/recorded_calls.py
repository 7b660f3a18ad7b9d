"""Checks the right that each call of GatewayService needs, and opens an attempt of the audit log around the calls that
`audit/action.py` names. So refused calls leave a record too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from gangline.errors import GanglineError
from gangline.protocol.rpc import find_token
from gangline.v1 import gateway_pb2
from services.common.connection.peer import peer_host
from services.common.server import current_principal
from services.gateway.audit.action import CONNECT, RECORDED_CALLS
from services.gateway.audit.attempt import Attempt
from services.gateway.audit.trail import AuditTrail
from services.gateway.mirror.access_table import NEED_BY_CALL, USER_SERVICE, Need
from services.gateway.rpc.gateway_service import GatewayService
from services.gateway.usecase.bundle import UseCases

_SURFACE = "grpc"
Context = Any


def recorded(service: GatewayService, usecases: UseCases) -> GatewayService:
    """Returns the service, whose methods check rights and leave records."""
    trail = usecases.trail
    for method in gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"].methods:
        inner, action = getattr(service, method.name), RECORDED_CALLS.get(method.name)
        check: Any = _checking_stream if method.server_streaming else _checking
        inner = check(inner, USER_SERVICE + method.name, usecases)
        if action == CONNECT:
            call: Any = _connecting(inner, action, trail)
        elif action is not None:
            call = _changing(inner, action, trail)
        else:
            reading = _reading_stream if method.server_streaming else _reading
            call = reading(inner, method.name, trail)
        setattr(service, method.name, call)
    return service


def _checking(
    inner: Callable[[Any, Context], Awaitable[Any]], path: str, usecases: UseCases
) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call(request: Any, context: Context) -> Any:
        _check(path, usecases)
        return await inner(request, context)

    return call


def _checking_stream(
    inner: Callable[[Any, Context], AsyncIterator[Any]], path: str, usecases: UseCases
) -> Callable[[Any, Context], AsyncIterator[Any]]:
    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        _check(path, usecases)
        async for answer in inner(request, context):
            yield answer

    return call


def _check(path: str, usecases: UseCases) -> None:
    need = NEED_BY_CALL.get(path)
    if need is not Need.OPEN:
        usecases.check_call(need, current_principal())


def _attempt(action: str, trail: AuditTrail, request: Any, context: Context) -> Attempt:
    return trail.attempt(
        _SURFACE,
        action,
        current_principal(),
        find_token(context.invocation_metadata()),
        peer_host(context.peer()),
        request_id=getattr(request, "request_id", ""),
        source=request,
    )


def _changing(
    inner: Callable[[Any, Context], Awaitable[Any]], action: str, trail: AuditTrail
) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call(request: Any, context: Context) -> Any:
        with _attempt(action, trail, request, context):
            return await inner(request, context)

    return call


def _connecting(
    inner: Callable[[Any, Context], AsyncIterator[Any]], action: str, trail: AuditTrail
) -> Callable[[Any, Context], AsyncIterator[Any]]:
    """The record is written when the connection is made, or has failed, and not at its end."""

    async def call(requests: Any, context: Context) -> AsyncIterator[Any]:
        is_begun = False
        seen = _First(requests)
        try:
            async for answer in inner(seen, context):
                if not is_begun:
                    is_begun = True
                    _attempt(action, trail, seen.first, context).finish(None)
                yield answer
        except GanglineError as error:
            if not is_begun:
                _attempt(action, trail, seen.first, context).finish(error)
            raise

    return call


class _First:
    """The requests of a stream, the first of which names the object."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = requests
        self.first: Any = None

    def __aiter__(self) -> _First:
        return self

    async def __anext__(self) -> Any:
        request = await anext(aiter(self._requests))
        if self.first is None:
            self.first = request
        return request


def _note(name: str, trail: AuditTrail, context: Context, error: GanglineError) -> None:
    token = find_token(context.invocation_metadata())
    address = peer_host(context.peer())
    trail.note_forbidden(
        error, surface=_SURFACE, call=name, principal=current_principal(), token=token, address=address
    )


def _reading(
    inner: Callable[[Any, Context], Awaitable[Any]], name: str, trail: AuditTrail
) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call(request: Any, context: Context) -> Any:
        try:
            return await inner(request, context)
        except GanglineError as error:
            _note(name, trail, context, error)
            raise

    return call


def _reading_stream(
    inner: Callable[[Any, Context], AsyncIterator[Any]], name: str, trail: AuditTrail
) -> Callable[[Any, Context], AsyncIterator[Any]]:
    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            async for answer in inner(request, context):
                yield answer
        except GanglineError as error:
            _note(name, trail, context, error)
            raise

    return call
