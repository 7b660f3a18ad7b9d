"""The channel to one gateway: token, deadlines, and which failures are tried again and for how long.

Only what is safe to repeat comes here: reads, and changes that carry a request id. A gateway that this client has
reached before is given time to restart; one that never answered is given up soon, as its address is likely wrong. The
error of a change that failed says what is known of its effect over all attempts, and carries the request id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc

from gangline import rpc
from gangline.client.login import Login
from gangline.errors import Effect, ErrorKind, GanglineError, say_effect
from gangline.v1 import gateway_pb2, gateway_pb2_grpc

T = TypeVar("T")
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 1.0
_FIRST_CONTACT_SECONDS = 3.0
DEFAULT_RETRY_SECONDS = 10.0
_FAILURES = (ErrorKind.UNAVAILABLE, ErrorKind.TIMEOUT, ErrorKind.INTERNAL)
# grpc also ends calls on a broken connection with these.
_BROKEN = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)


class Connection:
    """call_seconds: deadline of one attempt of a call. retry_seconds: how long a call is tried again; None takes
    DEFAULT_RETRY_SECONDS, and less for a gateway that never answered."""

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
        """One answer. request: a message, or a function that makes a fresh iterator of them for each attempt.

        A message with a request id is a change: the error says what is known of its effect. is_open: an earlier call
        with this request id may have made the change.
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

    def _repeat_change(self, attempt: Callable[[], T], request: Any, is_open: bool) -> T:
        """As `_repeat`, and also after a timeout: with its request id a change is safe to send again. Raises an error
        with the effect of all attempts together."""
        effects = [Effect.UNKNOWN] if is_open else []
        try:
            return self._repeat(attempt, effects)
        except GanglineError as error:
            # A refusal takes into account what earlier attempts have changed; a failure does not.
            error.effect = Effect.UNKNOWN if Effect.UNKNOWN in effects and error.kind in _FAILURES else error.effect
            error.request_id = request.request_id
            if isinstance(request, gateway_pb2.CreateExperimentRequest):
                raise error.reworded(say_create(error)) from error
            advice = "; repeat it, which is safe" if error.effect is Effect.UNKNOWN else ""
            raise error.reworded(say_effect(error) + advice) from error

    def _repeat(self, attempt: Callable[[], T], effects: list[Effect] | None = None) -> T:
        """effects: takes the effect of every attempt that failed; None for a read."""
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
    """The message of an experiment that could not be created, after what is known of it."""
    return say_effect(error, "the experiment was created", "nothing was created")
