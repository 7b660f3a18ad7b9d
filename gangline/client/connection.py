"""The channel to one gateway: its token, its deadlines, and its retries.

Only requests that are safe to repeat use it: reads, and changes that carry a request id. A gateway that this client has
reached before gets time to restart. A gateway that has never answered is given up soon, because its address is likely
wrong. The error of a failed change reports its effect over all attempts and carries the request id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc

from gangline.client.login import Login
from gangline.errors import Effect, ErrorKind, GanglineError, say_effect
from gangline.protocol import rpc
from gangline.v1 import gateway_pb2, gateway_pb2_grpc

T = TypeVar("T")
# The back-off between two attempts doubles from the first to the longest pause.
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 1.0
# How long a gateway that has never answered is retried.
_FIRST_CONTACT_SECONDS = 3.0
DEFAULT_RETRY_SECONDS = 10.0
_FAILURES = (ErrorKind.UNAVAILABLE, ErrorKind.TIMEOUT, ErrorKind.INTERNAL)
# Statuses with which grpc may also end a call on a broken connection.
_BROKEN = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)


class Connection:
    """Calls one gateway with retries. call_seconds: deadline of one attempt of a call. retry_seconds: how long a call
    is retried. None takes DEFAULT_RETRY_SECONDS, and less for a gateway that never answered."""

    def __init__(self, login: Login, call_seconds: float, retry_seconds: float | None) -> None:
        self.target = f"the gateway at {login.address}"
        self._call_seconds = call_seconds
        self._retry_seconds = DEFAULT_RETRY_SECONDS if retry_seconds is None else retry_seconds
        first = _FIRST_CONTACT_SECONDS if retry_seconds is None else retry_seconds
        self._first_contact_seconds = min(first, self._retry_seconds)
        self._has_answered = False
        self._metadata = rpc.token_metadata(login.token)
        self._channel = grpc.insecure_channel(login.address, options=rpc.CHANNEL_OPTIONS)
        self.stub = gateway_pb2_grpc.GatewayServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def call(self, method: Callable[..., T], request: Any, *, is_open: bool = False) -> T:
        """Calls a method and returns its one answer. request: a message, or a function that makes a fresh iterator of
        them for each attempt.

        A message with a request id is a change, whose error reports what is known of its effect. is_open: an earlier
        call with this request id may have made the change.
        """

        def attempt() -> T:
            sent = request() if callable(request) else request
            return method(sent, timeout=self._call_seconds, metadata=self._metadata)

        request_id = getattr(request, "request_id", "")
        is_change = bool(request_id) and not isinstance(request, gateway_pb2.ListExperimentsRequest)
        return self._repeat_change(attempt, request, is_open) if is_change else self._repeat(attempt)

    def stream(
        self, method: Callable[..., Any], make_request: Callable[[], Any], seconds: float | None = None
    ) -> Iterator[Any]:
        """Yields the answers of a stream. After a lost connection the stream is opened again with make_request(). So
        the caller must make the request so that no answer is repeated, or drop repeated ones. seconds: for the stream
        as a whole."""
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
        """Yields the answers of a stream that cannot resume after a lost connection. Only its opening is retried."""
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

    def _repeat_change(self, attempt: Callable[[], T], request: Any, is_open: bool) -> T:
        """Repeats as `_repeat` does, and also after a timeout, because a change with a request id is safe to send
        again. Raises an error with the effect of all attempts together."""
        effects = [Effect.UNKNOWN] if is_open else []
        try:
            return self._repeat(attempt, effects)
        except GanglineError as error:
            # A refusal already accounts for the changes of earlier attempts; a failure does not.
            error.effect = Effect.UNKNOWN if Effect.UNKNOWN in effects and error.kind in _FAILURES else error.effect
            error.request_id = request.request_id
            if isinstance(request, gateway_pb2.CreateExperimentRequest):
                raise error.reworded(say_create(error)) from error
            advice = "; repeat it, which is safe" if error.effect is Effect.UNKNOWN else ""
            raise error.reworded(say_effect(error) + advice) from error

    def _repeat(self, attempt: Callable[[], T], effects: list[Effect] | None = None) -> T:
        """Repeats an attempt while its failure may pass, up to the limit. effects: gets the effect of every failed
        attempt; None for a read."""
        started, pause = time.monotonic(), _FIRST_PAUSE_SECONDS
        while True:
            try:
                answer = attempt()
            except grpc.RpcError as failure:
                error = rpc.error_of(failure, self.target)
                is_passing = error.kind is ErrorKind.UNAVAILABLE
                if effects is not None:
                    effects.append(error.effect)
                    is_passing |= error.kind is ErrorKind.TIMEOUT or failure.code() in _BROKEN
                if not is_passing or time.monotonic() - started + pause > self._limit(error):
                    raise error from failure
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                self._has_answered = True
                return answer

    def _limit(self, error: GanglineError) -> float:
        is_stranger = error.code == "rpc.unreachable" and not self._has_answered
        return self._first_contact_seconds if is_stranger else self._retry_seconds


def say_create(error: GanglineError) -> str:
    """Returns the message about an experiment that could not be created, prefixed with what is known of it."""
    return say_effect(error, "the experiment was created", "nothing was created")
