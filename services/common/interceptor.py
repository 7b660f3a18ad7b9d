"""The steps around every grpc call that a service answers.

Owns their order: admit the caller, read the request, run the handler, count the call, turn an exception into a grpc
status. A caller that is not admitted is answered before any of the request's body is read. It knows neither tokens nor
services. Installed by `server.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError
from prometheus_client import Counter, Histogram

from gangline.errors import ErrorKind, GanglineError, invalid
from gangline.protocol.rpc import MAX_MESSAGE_BYTES, asks_to_catch_up, find_token, status_of
from services.common.access.call_limit import CallLimits, OpenReader, PeerCount, StrangerGuard, too_slow
from services.common.connection.peer import peer_host

_log = structlog.get_logger(__name__)

CALLS = Counter("gangline_grpc_server_calls_total", "Calls answered", ["method", "status"])
CALL_SECONDS = Histogram("gangline_grpc_server_call_seconds", "Time of one unary call", ["method"])

# Turns of the event loop in which grpc's outermost task of a call ends after the one that runs the handler. One is
# needed.
_TURNS = 3
Admit = Callable[[str, str | None], Awaitable[None]]
# Receives method, peer and error of a call that was refused.
NoteRefused = Callable[[str, str, Exception], None]
Context = Any
# Receives the token of a stream, and what ends the stream once its caller is not admitted any more. Returns the context
# of the stream.
WatchStream = Callable[[str | None, Callable[[GanglineError], object]], AbstractContextManager[None]]
NO_LIMITS = CallLimits()
ANY_NUMBER = PeerCount(None)


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every call. admit: receives method and token; returns or raises GanglineError. It runs in the task of the
    handler, so the handler finds the context variables that it sets. catch_up: runs before a call that asks for it
    (rpc.CATCH_UP_METADATA). is_readmitting: a stream's caller is admitted again before each answer, so a stream ends
    with its caller's token. note_admitted: receives the context of each call whose caller has a token.
    note_refused: receives the calls whose callers are not admitted. watch_stream: ends streams that carry nothing.
    open_calls: counts the calls that run."""

    def __init__(
        self,
        admit: Admit,
        limits: CallLimits = NO_LIMITS,
        catch_up: Callable[[], Awaitable[None]] | None = None,
        *,
        is_readmitting: bool = False,
        note_admitted: Callable[[Context], None] | None = None,
        note_refused: NoteRefused | None = None,
        watch_stream: WatchStream | None = None,
    ) -> None:
        self.open_calls = OpenCalls()
        self._admit = admit
        self._readmit = admit if is_readmitting else None
        self._limits = limits
        self._note_admitted = note_admitted
        self._note_refused = note_refused
        self._watch_stream = watch_stream
        self._streams = PeerCount(limits.streams_of_peer)
        self._open_reader = OpenReader()
        self._catch_up = catch_up
        # By method: the handler of the service, and the same with all that happens around it.
        self._wrapped: dict[str, tuple[Any, grpc.RpcMethodHandler[Any, Any]]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        method, metadata = handler_call_details.method, cast("Any", handler_call_details.invocation_metadata)
        try:
            await self._admit(method, find_token(metadata))
            if self._catch_up is not None and asks_to_catch_up(metadata):
                await self._catch_up()
        except Exception as error:  # noqa: BLE001 - the top of every call
            return _Call(method, self.open_calls).refuse(error, self._note_refused)
        wrapped = self._wrapped.get(method)
        if wrapped is None or wrapped[0] is not handler:
            call = _Call(
                method,
                self.open_calls,
                self._limits,
                self._readmit,
                self._streams,
                note_admitted=self._note_admitted,
                watch_stream=self._watch_stream,
            )
            guard = self._limits.guards.get(method)
            wrapped = (
                handler,
                call.wrap(handler) if guard is None else call.wrap_open(handler, guard, self._open_reader),
            )
            self._wrapped[method] = wrapped
        return wrapped[1]


class OpenCalls:
    """Keeps grpc's tasks of the calls whose handlers have begun. A task ends after its handler, once the status is
    sent."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def note(self) -> None:
        """A handler calls this as it begins."""
        task = asyncio.current_task()
        if task is not None and task not in self._tasks:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def wait_ended(self) -> None:
        """Returns once no handler runs, and grpc has ended its own tasks around them. If the event loop ended those,
        grpc would log each of them as an error."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        for _ in range(_TURNS):
            await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Replaces a request that cannot be read. If a deserializer raised instead, grpc would answer without a reason."""

    error: GanglineError


class _Requests:
    """Yields the requests of a stream, up to the first that cannot be read, or that does not arrive in time. seconds:
    None for no limit."""

    def __init__(self, requests: AsyncIterator[Any], seconds: float | None = None) -> None:
        # Of a call that is refused before its first message, grpc's iterator must not begin: it would warn of its end.
        self._requests = requests
        self._seconds = seconds

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> Any:
        if self._seconds is None:
            return _check(await anext(aiter(self._requests)))
        try:
            async with asyncio.timeout(self._seconds):
                return _check(await anext(aiter(self._requests)))
        except TimeoutError:
            raise too_slow(self._seconds) from None


def _check(request: Any) -> Any:
    if isinstance(request, _Unreadable):
        raise request.error
    return request


def _no_request(method: str) -> _Unreadable:
    return _Unreadable(invalid("rpc.malformed", f"{method} got no message"))


@dataclass(slots=True)
class _Ending:
    """Ends the handler of a stream from outside, with an error in place of a cancellation."""

    task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)
    error: GanglineError | None = None

    def end(self, error: GanglineError) -> None:
        self.error = error
        if self.task is not None:
            self.task.cancel()

    def reason_of(self, error: BaseException) -> BaseException:
        """Returns why the handler has ended."""
        if self.error is None or self.task is None or not isinstance(error, asyncio.CancelledError):
            return error
        self.task.uncancel()
        return self.error


class _Call:
    """Handles every call of one method. It keeps nothing of a call but its metrics. readmit: admits the caller of a
    stream before each answer; None admits it once. streams: counts the streams of each peer. note_admitted,
    watch_stream: as the interceptor's."""

    def __init__(
        self,
        method: str,
        open_calls: OpenCalls,
        limits: CallLimits = NO_LIMITS,
        readmit: Admit | None = None,
        streams: PeerCount = ANY_NUMBER,
        *,
        note_admitted: Callable[[Context], None] | None = None,
        watch_stream: WatchStream | None = None,
    ) -> None:
        self._method = method
        self._open_calls = open_calls
        self._max_bytes = limits.bytes_by_method.get(method, MAX_MESSAGE_BYTES)
        self._message_seconds = limits.seconds_by_method.get(method)
        self._readmit = readmit
        self._streams = streams
        self._note_admitted = note_admitted
        self._watch_stream = watch_stream
        # To look a metric up by its labels takes longer than to count.
        self._count_by_status: dict[str, Counter] = {}
        self._seconds: Histogram | None = None

    def refuse(self, error: Exception, note: NoteRefused | None = None) -> grpc.RpcMethodHandler[Any, Any]:
        """Answers with an error, as a stream whatever the method is. For other kinds grpc reads the request's body
        before it calls the handler."""

        async def run(_requests: Any, context: Context) -> AsyncIterator[Any]:
            if error:
                if note is not None:
                    note(self._method, context.peer(), error)
                await self._end(context, error)
            yield

        return grpc.stream_stream_rpc_method_handler(cast("Any", run))

    def wrap_open(self, handler: Any, guard: StrangerGuard, reader: OpenReader) -> grpc.RpcMethodHandler[Any, Any]:
        """Wraps a unary method that needs no token. It is a stream for grpc, so that nothing of a call is read before
        the guard has judged the caller's address."""
        deserialize = self._deserializer(handler.request_deserializer)

        async def run(requests: Any, context: Context) -> AsyncIterator[Any]:
            try:
                self._open_calls.note()
                peer = peer_host(context.peer())
                request = await reader.read(guard, peer, aiter(requests))
                if isinstance(request, _Unreadable | None):
                    guard.fail_address(peer)
                response = await handler.unary_unary(_check(request or _no_request(self._method)), context)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the top of every call
                await self._end(context, error)
            self._count("ok")
            yield response

        return grpc.stream_stream_rpc_method_handler(
            cast("Any", run), request_deserializer=deserialize, response_serializer=handler.response_serializer
        )

    def wrap(self, handler: Any) -> grpc.RpcMethodHandler[Any, Any]:
        is_stream = handler.request_streaming
        arguments = {
            "request_deserializer": self._deserializer(handler.request_deserializer),
            "response_serializer": handler.response_serializer,
        }
        make: Any
        if handler.response_streaming:
            inner = handler.stream_stream if is_stream else handler.unary_stream
            make = grpc.stream_stream_rpc_method_handler if is_stream else grpc.unary_stream_rpc_method_handler
            return cast("grpc.RpcMethodHandler[Any, Any]", make(self._streaming(inner, is_stream), **arguments))
        inner = handler.stream_unary if is_stream else handler.unary_unary
        make = grpc.stream_unary_rpc_method_handler if is_stream else grpc.unary_unary_rpc_method_handler
        return cast("grpc.RpcMethodHandler[Any, Any]", make(self._unary(inner, is_stream), **arguments))

    def _deserializer(self, read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        def deserialize(message: bytes) -> Any:
            if len(message) > self._max_bytes:
                return _Unreadable(invalid("rpc.too_large", self._too_large(len(message))))
            try:
                return read(message)
            except DecodeError:
                return _Unreadable(invalid("rpc.malformed", f"{self._method} got bytes that are none of its messages"))

        return deserialize

    def _too_large(self, num_bytes: int) -> str:
        return f"{self._method} takes messages of at most {self._max_bytes} bytes, this one has {num_bytes}; send less"

    def _unary(
        self, inner: Callable[[Any, Context], Awaitable[Any]], is_stream: bool
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        async def run(request: Any, context: Context) -> Any:
            started = time.monotonic()
            self._note(context)
            try:
                self._open_calls.note()
                if is_stream:
                    with self._streams.held(peer_host(context.peer())):
                        response = await inner(_Requests(request, self._message_seconds), context)
                else:
                    response = await inner(_check(request), context)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the top of every call
                await self._end(context, error)
            self._count("ok")
            self._observe(time.monotonic() - started)
            return response

        return run

    def _streaming(
        self, inner: Callable[[Any, Context], AsyncIterator[Any]], is_stream: bool
    ) -> Callable[[Any, Context], Any]:
        async def run(request: Any, context: Context) -> AsyncIterator[Any]:
            self._note(context)
            ending = _Ending()
            try:
                self._open_calls.note()
                with self._streams.held(peer_host(context.peer())), self._watched(context, ending):
                    requests = _Requests(request, self._message_seconds) if is_stream else _check(request)
                    async for response in inner(requests, context):
                        if self._readmit is not None:
                            await self._readmit(self._method, find_token(context.invocation_metadata()))
                        yield response
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the top of every call
                await self._end(context, ending.reason_of(error))
            self._count("ok")

        return run

    def _watched(self, context: Context, ending: _Ending) -> AbstractContextManager[None]:
        if self._watch_stream is None:
            return nullcontext()
        return self._watch_stream(find_token(context.invocation_metadata()), ending.end)

    def _note(self, context: Context) -> None:
        if self._note_admitted is not None:
            self._note_admitted(context)

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
        counter = self._count_by_status.get(status)
        if counter is None:
            counter = self._count_by_status[status] = CALLS.labels(self._method, status)
        counter.inc()

    def _observe(self, seconds: float) -> None:
        if self._seconds is None:
            self._seconds = CALL_SECONDS.labels(self._method)
        self._seconds.observe(seconds)
