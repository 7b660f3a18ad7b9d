"""The connection to a cluster through any of its gateways: the choice of one, its token, its deadlines, its retries.

The first choice is random, so that clients spread over the gateways. It stays until a call fails there; then the call
goes on at the next gateway. Only requests that are safe to repeat use it: reads, and changes that carry a request id.
Gateways get time to restart when this client has reached one before. Gateways that have never answered are given up
soon, because their addresses are likely wrong. The error of a failed change reports its effect over all attempts and
carries the request id.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import grpc

from gangline.client.login import Login, say_gateways
from gangline.client.retry_rule import Retry
from gangline.errors import Effect, ErrorKind, GanglineError, say_effect
from gangline.protocol import rpc
from gangline.v1 import gateway_pb2, gateway_pb2_grpc

T = TypeVar("T")
# How long gateways that have never answered are retried.
_FIRST_CONTACT_SECONDS = 3.0
DEFAULT_RETRY_SECONDS = 10.0
# A process that hangs keeps its connections until the keepalive ends them, within 8 s (rpc.CHANNEL_OPTIONS). So a
# stream that has lasted longer had a gateway that worked.
_HANG_SECONDS = 9.0
_FAILURES = (ErrorKind.UNAVAILABLE, ErrorKind.TIMEOUT, ErrorKind.INTERNAL)
# Statuses with which grpc may also end a call on a broken connection.
_BROKEN = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)
# Answers of a gateway about itself; another one may do better at once.
_OWN_CODES = ("gateway.stopping", "gateway.behind")
_UNREACHABLE = "rpc.unreachable"


class _Gateway:
    """One gateway and its channel, which connects with the first call."""

    def __init__(self, address: str) -> None:
        self.target = say_gateways([address])
        self._channel = grpc.insecure_channel(address, options=rpc.CHANNEL_OPTIONS)
        self.stub = gateway_pb2_grpc.GatewayServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()


class _AnyStub:
    """Has the methods of a GatewayServiceStub. Each takes a gateway before the arguments of a call."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda gateway, *arguments, **options: getattr(gateway.stub, name)(*arguments, **options)


@dataclass(frozen=True, slots=True)
class WayBack:
    """The way back for a user whose stream has lost all gateways. work: goes on meanwhile, as "experiment 7". command:
    shows it again."""

    work: str
    command: str


class Connection:
    """Calls the gateways of a cluster with retries. call_seconds: deadline of one attempt of a call. retry_seconds: how
    long a call is retried. None takes DEFAULT_RETRY_SECONDS, and less for gateways that never answered."""

    def __init__(self, login: Login, call_seconds: float, retry_seconds: float | None) -> None:
        self.target = say_gateways(login.addresses)
        self._call_seconds = call_seconds
        self._retry_seconds = DEFAULT_RETRY_SECONDS if retry_seconds is None else retry_seconds
        first = _FIRST_CONTACT_SECONDS if retry_seconds is None else retry_seconds
        self._first_contact_seconds = min(first, self._retry_seconds)
        self.has_answered = False
        self._metadata = rpc.token_metadata(login.token)
        self.gateways = [_Gateway(address) for address in login.addresses]
        random.shuffle(self.gateways)
        # The gateway with which the next call begins. Threads share it; each assignment is right by itself.
        self.chosen = self.gateways[0]
        # The gateway that answered last, or the first choice. Another one must first catch up with what this client has
        # seen and changed there.
        self.current = self.chosen
        self.stub = cast("gateway_pb2_grpc.GatewayServiceStub", _AnyStub())

    def close(self) -> None:
        for gateway in self.gateways:
            gateway.close()

    def call(self, method: Callable[..., T], request: Any, *, is_open: bool = False) -> T:
        """Calls a method of `stub` and returns its one answer. request: a message, or a function that makes a fresh
        iterator of them for each attempt.

        A message with a request id is a change, whose error reports what is known of its effect. is_open: an earlier
        call with this request id may have made the change.
        """
        request_id = getattr(request, "request_id", "")
        is_change = bool(request_id) and not isinstance(request, gateway_pb2.ListExperimentsRequest)
        return self._change(method, request, is_open) if is_change else self._call(method, request, _Attempts(self))

    def stream(
        self,
        method: Callable[..., Any],
        make_request: Callable[[], Any],
        seconds: float | None = None,
        *,
        way_back: WayBack | None = None,
    ) -> Iterator[Any]:
        """Yields the answers of a stream. After a lost connection the stream is opened again with make_request(), at
        the next gateway. So the caller must make the request so that no answer is repeated, or drop repeated ones.

        seconds: for the stream as a whole. way_back: for the error when all gateways are lost.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        attempts = _Attempts(self, is_stream=True)
        while True:
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            messages = method(
                attempts.gateway, make_request(), timeout=timeout, metadata=self._metadata_for(attempts.gateway)
            )
            began_at, has_message = time.monotonic(), False
            try:
                for message in messages:
                    attempts.succeed()
                    has_message = True
                    yield message
            except grpc.RpcError as failure:
                attempts.restart(time.monotonic() - began_at, has_message=has_message)
                try:
                    attempts.fail(failure)
                except GanglineError as error:
                    if way_back is None or error.kind is not ErrorKind.UNAVAILABLE or not self.has_answered:
                        raise
                    raise error.reworded(self._say_lost(error, way_back, attempts.seconds())) from failure
            else:
                return
            finally:
                messages.cancel()

    def stream_once(self, method: Callable[..., Any], request: Any) -> Iterator[Any]:
        """Yields the answers of a stream that cannot resume after a lost connection. Only its opening is retried."""
        attempts = _Attempts(self, is_stream=True)
        while True:
            messages = method(attempts.gateway, request, metadata=self._metadata_for(attempts.gateway))
            has_message = False
            try:
                for message in messages:
                    attempts.succeed()
                    has_message = True
                    yield message
            except grpc.RpcError as failure:
                if has_message:
                    self.leave(attempts.gateway)
                    raise rpc.error_of(failure, attempts.gateway.target) from failure
                attempts.fail(failure)
            else:
                return
            finally:
                messages.cancel()

    def leave(self, gateway: _Gateway) -> _Gateway:
        """Returns the gateway to try after this one. Later calls begin there too."""
        following = self.gateways[(self.gateways.index(gateway) + 1) % len(self.gateways)]
        if self.chosen is gateway:
            self.chosen = following
        return following

    def limit(self, error: GanglineError) -> float:
        """Returns for how many seconds a call with this error is retried."""
        is_stranger = error.code == _UNREACHABLE and not self.has_answered
        return self._first_contact_seconds if is_stranger else self._retry_seconds

    def _metadata_for(self, gateway: _Gateway) -> tuple[tuple[str, str], ...]:
        return self._metadata if gateway is self.current else self._metadata + rpc.CATCH_UP_METADATA

    def _call(self, method: Callable[..., T], request: Any, attempts: _Attempts) -> T:
        while True:
            sent = request() if callable(request) else request
            try:
                answer = method(
                    attempts.gateway, sent, timeout=self._call_seconds, metadata=self._metadata_for(attempts.gateway)
                )
            except grpc.RpcError as failure:
                attempts.fail(failure)
            else:
                attempts.succeed()
                return answer

    def _change(self, method: Callable[..., T], request: Any, is_open: bool) -> T:
        """Calls as `_call` does, and again after a timeout, because a change with a request id is safe to send again.
        Raises an error with the effect of all attempts together."""
        effects = [Effect.UNKNOWN] if is_open else []
        try:
            return self._call(method, request, _Attempts(self, effects))
        except GanglineError as error:
            # A refusal already accounts for the changes of earlier attempts; a failure does not.
            error.effect = Effect.UNKNOWN if Effect.UNKNOWN in effects and error.kind in _FAILURES else error.effect
            error.request_id = request.request_id
            if isinstance(request, gateway_pb2.CreateExperimentRequest):
                raise error.reworded(say_create(error)) from error
            advice = "; repeat it, which is safe" if error.effect is Effect.UNKNOWN else ""
            raise error.reworded(say_effect(error) + advice) from error

    def _say_lost(self, error: GanglineError, way_back: WayBack, seconds: float) -> str:
        back = f"come back with: {way_back.command}"
        if error.code != _UNREACHABLE:
            return f"{error.message}; {way_back.work} goes on; {back}"
        is_one = len(self.gateways) == 1
        verb, pronoun = ("has", "it") if is_one else ("have", "them")
        lost = f"{self.target} {verb} not answered for {seconds:.0f} s"
        return f"{lost}; {way_back.work} goes on without {pronoun}; {back}"


class _Attempts:
    """The attempts of one call. gateway: for the present attempt. effects: gets the effect of every failed attempt of a
    change; None for a read."""

    def __init__(self, connection: Connection, effects: list[Effect] | None = None, *, is_stream: bool = False) -> None:
        self.gateway = connection.chosen
        self._connection = connection
        self._effects = effects
        self._is_stream = is_stream
        self._retry = Retry(len(connection.gateways), time.monotonic())
        # A gateway's answer says more than that another gateway is away.
        self._answer: GanglineError | None = None

    def succeed(self) -> None:
        self._connection.has_answered = True
        self._connection.current = self.gateway

    def fail(self, failure: grpc.RpcError) -> None:
        """Changes to the next gateway after a pause. Raises GanglineError when the call cannot go on."""
        error = rpc.error_of(failure, self.gateway.target)
        is_answer = rpc.is_answer(failure) and error.code not in _OWN_CODES
        if error.code != _UNREACHABLE or error.effect is Effect.UNKNOWN:
            self._connection.has_answered = True
        if self._effects is not None:
            self._effects.append(error.effect)
        if not self._may_pass(failure, error, is_answer=is_answer):
            raise error from failure
        if is_answer:
            self._answer = error
        pause = self._retry.fail(time.monotonic(), self._connection.limit(error), is_answer=is_answer)
        self.gateway = self._connection.leave(self.gateway)
        if pause is None:
            raise self._answer or rpc.error_of(failure, self._connection.target) from failure
        time.sleep(pause)

    def _may_pass(self, failure: grpc.RpcError, error: GanglineError, *, is_answer: bool) -> bool:
        """Returns whether another attempt may succeed. A read that one gateway has not answered in time is tried at
        each of the others once."""
        if error.kind is ErrorKind.TIMEOUT:
            return self._effects is not None or (not (self._is_stream or is_answer) and self._retry.has_untried)
        return error.kind is ErrorKind.UNAVAILABLE or failure.code() in _BROKEN

    def restart(self, lasted_seconds: float, *, has_message: bool) -> None:
        """Begins a new outage for a stream that breaks after it has worked. A gateway that accepts streams only to
        break them gets the growing pauses of one that is away."""
        if has_message or lasted_seconds > _HANG_SECONDS:
            self._answer = None
        if lasted_seconds > _HANG_SECONDS:
            self._retry.restart(time.monotonic())
        elif has_message:
            self._retry.restart_clock(time.monotonic())

    def seconds(self) -> float:
        return self._retry.seconds(time.monotonic())


def say_create(error: GanglineError) -> str:
    """Returns the message about an experiment that could not be created, prefixed with what is known of it."""
    return say_effect(error, "the experiment was created", "nothing was created")
