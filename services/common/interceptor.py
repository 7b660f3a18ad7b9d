"""What happens around every grpc call that a service answers.

Owns the order: admit the caller, run the handler, count it, turn what it raised into a grpc status. It knows neither
tokens nor services. Installed by `server.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, cast

import grpc
import grpc.aio
import structlog
from prometheus_client import Counter, Histogram

from gangline.errors import ErrorKind, GanglineError
from gangline.rpc import find_token, status_of

_log = structlog.get_logger(__name__)

CALLS = Counter("gangline_grpc_server_calls_total", "Calls answered", ["method", "status"])
CALL_SECONDS = Histogram("gangline_grpc_server_call_seconds", "Time of one unary call", ["method"])

Admit = Callable[[str, str | None], Awaitable[None]]
Context = Any


class CallInterceptor(grpc.aio.ServerInterceptor):
    """admit: given method and token, returns or raises GanglineError. It runs in the task of the handler, so what it
    puts into a context variable the handler finds there."""

    def __init__(self, admit: Admit) -> None:
        self._admit = admit

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        call = _Call(method, find_token(cast("Any", handler_call_details.invocation_metadata)), self._admit)
        return call.wrap(handler)


class _Call:
    """One call on its way through the handler."""

    def __init__(self, method: str, token: str | None, admit: Admit) -> None:
        self._method = method
        self._token = token
        self._admit = admit

    def wrap(self, handler: Any) -> grpc.RpcMethodHandler[Any, Any]:
        arguments = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        make: Any
        if handler.response_streaming:
            inner = handler.stream_stream if handler.request_streaming else handler.unary_stream
            make = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            return cast("grpc.RpcMethodHandler[Any, Any]", make(self._streaming(inner), **arguments))
        inner = handler.stream_unary if handler.request_streaming else handler.unary_unary
        make = (
            grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )
        return cast("grpc.RpcMethodHandler[Any, Any]", make(self._unary(inner), **arguments))

    def _unary(self, inner: Callable[[Any, Context], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
        async def run(request: Any, context: Context) -> Any:
            started = time.monotonic()
            try:
                await self._admit(self._method, self._token)
                response = await inner(request, context)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the top of every call
                await self._end(context, error)
            self._count("ok")
            CALL_SECONDS.labels(self._method).observe(time.monotonic() - started)
            return response

        return run

    def _streaming(self, inner: Callable[[Any, Context], AsyncIterator[Any]]) -> Callable[[Any, Context], Any]:
        async def run(request: Any, context: Context) -> AsyncIterator[Any]:
            try:
                await self._admit(self._method, self._token)
                async for response in inner(request, context):
                    yield response
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the top of every call
                await self._end(context, error)
            self._count("ok")

        return run

    async def _end(self, context: Context, error: BaseException) -> NoReturn:
        if isinstance(error, asyncio.CancelledError | grpc.aio.AbortError):
            self._count("cancelled" if isinstance(error, asyncio.CancelledError) else "aborted")
            raise error
        if not isinstance(error, GanglineError):
            _log.error("a call failed", method=self._method, exc_info=error)
            error = GanglineError(
                "rpc.internal",
                f"{self._method} failed: {type(error).__name__}; see the service's log",
                ErrorKind.INTERNAL,
            )
        status, message, trailing = status_of(error)
        self._count(status.name.lower())
        await context.abort(status, message, trailing)
        raise AssertionError("abort returned")

    def _count(self, status: str) -> None:
        CALLS.labels(self._method, status).inc()
