"""The channel to one gateway: token, deadlines, and which failures are tried again and for how long.

Only what is safe to repeat comes here: reads, and changes that carry a request id. A gateway that this client has
reached before is given time to restart; one that never answered is given up soon, as its address is likely wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc

from gangline import rpc
from gangline.client.login import Login
from gangline.errors import ErrorKind, GanglineError
from gangline.v1 import gateway_pb2_grpc

T = TypeVar("T")
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 1.0
_FIRST_CONTACT_SECONDS = 3.0


class Connection:
    """call_seconds: deadline of one attempt of a call. retry_seconds: how long a call is tried again."""

    def __init__(self, login: Login, call_seconds: float, retry_seconds: float) -> None:
        self.target = f"the gateway at {login.address}"
        self._call_seconds = call_seconds
        self._retry_seconds = retry_seconds
        self._has_answered = False
        self._metadata = rpc.token_metadata(login.token)
        self._channel = grpc.insecure_channel(login.address, options=rpc.CHANNEL_OPTIONS)
        self.stub = gateway_pb2_grpc.GatewayServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def call(self, method: Callable[..., T], request: Any) -> T:
        """One answer. request: a message, or a function that makes a fresh iterator of them for each attempt."""

        def attempt() -> T:
            sent = request() if callable(request) else request
            return method(sent, timeout=self._call_seconds, metadata=self._metadata)

        return self._repeat(attempt)

    def stream(
        self, method: Callable[..., Any], make_request: Callable[[], Any], seconds: float | None = None
    ) -> Iterator[Any]:
        """The answers of a stream. After a lost connection the stream is opened again with make_request(), so the
        caller must make it so that nothing comes twice, or drop what does. seconds: for the stream as a whole."""
        deadline = None if seconds is None else time.monotonic() + seconds
        messages: Any = None
        try:
            while True:
                messages, first = self._repeat(lambda: self._open(method, make_request(), deadline))
                if first is None:
                    return
                yield first
                try:
                    yield from messages
                except grpc.RpcError as failure:
                    error = rpc.error_of(failure, self.target)
                    if error.kind is not ErrorKind.UNAVAILABLE:
                        raise error from failure
                    continue
                return
        finally:
            if messages is not None:
                messages.cancel()

    def stream_once(self, method: Callable[..., Any], request: Any) -> Iterator[Any]:
        """The answers of a stream that cannot go on after a lost connection; only its opening is tried again."""
        messages, first = self._repeat(lambda: self._open(method, request))
        try:
            if first is not None:
                yield first
                yield from messages
        except grpc.RpcError as failure:
            raise rpc.error_of(failure, self.target) from failure
        finally:
            messages.cancel()

    def _open(self, method: Callable[..., Any], request: Any, deadline: float | None = None) -> tuple[Any, Any]:
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        messages = method(request, timeout=timeout, metadata=self._metadata)
        return messages, next(messages, None)

    def _repeat(self, attempt: Callable[[], T]) -> T:
        started, pause = time.monotonic(), _FIRST_PAUSE_SECONDS
        while True:
            try:
                answer = attempt()
            except grpc.RpcError as failure:
                error = rpc.error_of(failure, self.target)
                if not self._may_repeat(error, time.monotonic() - started + pause):
                    raise error from failure
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                self._has_answered = True
                return answer

    def _may_repeat(self, error: GanglineError, elapsed_seconds: float) -> bool:
        if error.kind is not ErrorKind.UNAVAILABLE:
            return False
        is_stranger = error.code == "rpc.unreachable" and not self._has_answered
        limit = min(_FIRST_CONTACT_SECONDS, self._retry_seconds) if is_stranger else self._retry_seconds
        return elapsed_seconds <= limit
