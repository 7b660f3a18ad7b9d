"""Opens an attempt of the audit log around the calls of GatewayService that `audit/action.py` names."""

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
from services.gateway.rpc.gateway_service import GatewayService

_SURFACE = "grpc"
Context = Any


def recorded(service: GatewayService, trail: AuditTrail) -> GatewayService:
    """Returns the service, whose methods leave records."""
    for method in gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"].methods:
        inner, action = getattr(service, method.name), RECORDED_CALLS.get(method.name)
        if action == CONNECT:
            call: Any = _connecting(inner, action, trail)
        elif action is not None:
            call = _changing(inner, action, trail)
        else:
            reading = _reading_stream if method.server_streaming else _reading
            call = reading(inner, method.name, trail)
        setattr(service, method.name, call)
    return service


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
