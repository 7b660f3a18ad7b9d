"""The attempts of one call: which gateway comes next, after which pause, and which error a call ends with.

`Route` is the state that the calls of one client share. `Attempts` decides for one call. Both clients use them, so each
rule of retries exists once. The module sends nothing and waits for nothing; gangline.client.connection and
async_connection do both.

The first choice is random, so that clients spread over the gateways. It stays until a call fails there; then the call
goes on at the next gateway. Gateways get time to restart when this client has reached one before. Gateways that have
never answered are given up soon, because their addresses are likely wrong. The error of a failed change reports its
effect over all attempts and carries the request id.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import grpc

from gangline.errors import Effect, ErrorKind, GanglineError, say_effect
from gangline.login import Login, say_gateways
from gangline.protocol import rpc
from gangline.protocol.retry_rule import Retry
from gangline.v1 import gateway_pb2

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


class HasTarget(Protocol):
    """One gateway. target: the noun for messages."""

    target: str


G = TypeVar("G", bound=HasTarget)


@dataclass(frozen=True, slots=True)
class WayBack:
    """The way back for a user whose stream has lost all gateways."""

    work: str  # the work that goes on meanwhile, such as "experiment 7"
    command: str  # command that shows the work again


class Route(Generic[G]):
    """The gateways of a cluster, and what one client knows of them. call_seconds: deadline of one attempt of a call.
    retry_seconds: how long a call is retried. None takes DEFAULT_RETRY_SECONDS, and less for gateways that never
    answered."""

    def __init__(self, login: Login, call_seconds: float, retry_seconds: float | None, gateways: Sequence[G]) -> None:
        self.target = say_gateways(login.addresses)
        self.login = login
        self.call_seconds = call_seconds
        self._retry_seconds = DEFAULT_RETRY_SECONDS if retry_seconds is None else retry_seconds
        first = _FIRST_CONTACT_SECONDS if retry_seconds is None else retry_seconds
        self._first_contact_seconds = min(first, self._retry_seconds)
        self.has_answered = False
        self._metadata = rpc.token_metadata(login.token)
        self.gateways = list(gateways)
        random.shuffle(self.gateways)
        # The gateway with which the next call begins. Threads share it; each assignment is right by itself.
        self.chosen = self.gateways[0]
        # The gateway that answered last, or the first choice. Another one must first catch up with what this client has
        # seen and changed there.
        self.current = self.chosen

    def stream(
        self,
        method: Callable[..., Any],
        make_request: Callable[[], Any],
        seconds: float | None = None,
        *,
        way_back: WayBack | None = None,
    ) -> Any:
        """Yields the answers of a stream. After a lost connection the stream is opened again with make_request(), at
        the next gateway. So the caller must make the request so that no answer is repeated, or drop repeated ones.

        seconds: for the stream as a whole. way_back: for the error when all gateways are lost.
        """
        return self._stream(method, make_request, Attempts(self, is_stream=True, way_back=way_back), seconds)

    def stream_once(self, method: Callable[..., Any], request: Any) -> Any:
        """Yields the answers of a stream that cannot resume after a lost connection. Only its opening is retried."""
        return self._stream(method, lambda: request, Attempts(self, is_stream=True, can_resume=False), None)

    def _stream(
        self, method: Callable[..., Any], make_request: Callable[[], Any], attempts: Attempts[G], seconds: float | None
    ) -> Any:
        """Returns an iterator over the answers; each connection has its kind of iterators."""
        raise NotImplementedError

    def leave(self, gateway: G) -> G:
        """Returns the gateway to try after this one. Later calls begin there too."""
        following = self.gateways[(self.gateways.index(gateway) + 1) % len(self.gateways)]
        if self.chosen is gateway:
            self.chosen = following
        return following

    def limit(self, error: GanglineError) -> float:
        """Returns for how many seconds a call with this error is retried."""
        is_stranger = error.code == _UNREACHABLE and not self.has_answered
        return self._first_contact_seconds if is_stranger else self._retry_seconds

    def metadata_for(self, gateway: G) -> tuple[tuple[str, str], ...]:
        return self._metadata if gateway is self.current else self._metadata + rpc.CATCH_UP_METADATA


class Attempts(Generic[G]):
    """The attempts of one call. gateway: for the present attempt. effects: gets the effect of every failed attempt of a
    change; None for a read. can_resume: whether a stream may be opened again after its first message. way_back: for the
    error of a stream when all gateways are lost."""

    def __init__(
        self,
        route: Route[G],
        effects: list[Effect] | None = None,
        *,
        is_stream: bool = False,
        can_resume: bool = True,
        way_back: WayBack | None = None,
    ) -> None:
        self.gateway = route.chosen
        self._route = route
        self._effects = effects
        self._is_stream = is_stream
        self._can_resume = can_resume
        self._way_back = way_back
        self._retry = Retry(len(route.gateways), time.monotonic())
        # A gateway's answer says more than that another gateway is away.
        self._answer: GanglineError | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the metadata of the present attempt."""
        return self._route.metadata_for(self.gateway)

    def succeed(self) -> None:
        self._route.has_answered = True
        self._route.current = self.gateway

    def fail(self, failure: grpc.RpcError) -> float:
        """Changes to the next gateway. Returns the pause before the next attempt. Raises GanglineError when the call
        cannot go on."""
        error = rpc.error_of(failure, self.gateway.target)
        is_answer = rpc.is_answer(failure) and error.code not in _OWN_CODES
        if error.code != _UNREACHABLE or error.effect is Effect.UNKNOWN:
            self._route.has_answered = True
        if self._effects is not None:
            self._effects.append(error.effect)
        if not self._may_pass(failure, error, is_answer=is_answer):
            raise error from failure
        if is_answer:
            self._answer = error
        pause = self._retry.fail(time.monotonic(), self._route.limit(error), is_answer=is_answer)
        self.gateway = self._route.leave(self.gateway)
        if pause is None:
            raise explain(failure, self._route.login, self._route.target, self._answer) from failure
        return pause

    def lose(self, failure: grpc.RpcError, lasted_seconds: float, *, has_message: bool) -> float:
        """Does the same as `fail` for a stream. An outage that begins after the stream has worked is a new one."""
        if not self._can_resume:
            return self._break_off(failure, has_message=has_message)
        self._restart(lasted_seconds, has_message=has_message)
        try:
            return self.fail(failure)
        except GanglineError as error:
            if self._way_back is None or error.kind is not ErrorKind.UNAVAILABLE or not self._route.has_answered:
                raise
            raise error.reworded(self._say_lost(error, self._way_back)) from failure

    def _break_off(self, failure: grpc.RpcError, *, has_message: bool) -> float:
        """Raises the error of a stream that cannot resume and has brought a message; else does the same as `fail`."""
        if has_message:
            self._route.leave(self.gateway)
            raise explain(failure, self._route.login, self.gateway.target) from failure
        return self.fail(failure)

    def _may_pass(self, failure: grpc.RpcError, error: GanglineError, *, is_answer: bool) -> bool:
        """Returns whether another attempt may succeed. A read that one gateway has not answered in time is tried at
        each of the others once."""
        if error.kind is ErrorKind.TIMEOUT:
            return self._effects is not None or (not (self._is_stream or is_answer) and self._retry.has_untried)
        return error.kind is ErrorKind.UNAVAILABLE or failure.code() in _BROKEN

    def _restart(self, lasted_seconds: float, *, has_message: bool) -> None:
        """Begins a new outage for a stream that breaks after it has worked. A gateway that accepts streams only to
        break them gets the growing pauses of one that is away."""
        if has_message or lasted_seconds > _HANG_SECONDS:
            self._answer = None
        if lasted_seconds > _HANG_SECONDS:
            self._retry.restart(time.monotonic())
        elif has_message:
            self._retry.restart_clock(time.monotonic())

    def _say_lost(self, error: GanglineError, way_back: WayBack) -> str:
        back = f"come back with: {way_back.command}"
        if error.code != _UNREACHABLE:
            return f"{error.message}; {way_back.work} goes on; {back}"
        is_one = len(self._route.gateways) == 1
        verb, pronoun = ("has", "it") if is_one else ("have", "them")
        lost = f"{self._route.target} {verb} not answered for {self._retry.seconds(time.monotonic()):.0f} s"
        outage = _describe_outage(self._route.login)
        if outage:
            return f"{lost}; {outage}; {back}"
        return f"{lost}; {way_back.work} goes on without {pronoun}; {back}"


def explain(failure: grpc.RpcError, login: Login, target: str, answer: GanglineError | None = None) -> GanglineError:
    """Returns the error of a call that cannot go on. For a local cluster it names what does not run there. answer: of a
    gateway, where one has answered; else the error is that of the failure."""
    error = answer or rpc.error_of(failure, target)
    if not login.data_directory or error.kind is not ErrorKind.UNAVAILABLE:
        return error
    outage = _describe_outage(login)
    if error.code == _UNREACHABLE:
        error = rpc.error_of(failure, target, outage or "see `gangline status`")
    return error if outage in error.message else error.reworded(f"{error.message}; {outage}")


def _describe_outage(login: Login) -> str:
    """Returns a clause about what of a local cluster does not run; empty where all of it runs, and for other ones."""
    if not login.data_directory:
        return ""
    from gangline.local.outage import describe_outage  # noqa: PLC0415 - a failed call to a local cluster only

    return describe_outage(Path(login.data_directory))


def find_effects(request: Any, *, is_open: bool) -> list[Effect] | None:
    """Returns the list for the effects of a change's attempts; None for a read. A message with a request id is a
    change. is_open: an earlier call with this request id may have made the change."""
    request_id = getattr(request, "request_id", "")
    is_change = bool(request_id) and not isinstance(request, gateway_pb2.ListExperimentsRequest)
    return ([Effect.UNKNOWN] if is_open else []) if is_change else None


def error_of_change(error: GanglineError, request: Any, effects: Sequence[Effect]) -> GanglineError:
    """Returns the error of a failed change with the effect of all its attempts together."""
    # A refusal already accounts for the changes of earlier attempts; a failure does not.
    error.effect = Effect.UNKNOWN if Effect.UNKNOWN in effects and error.kind in _FAILURES else error.effect
    error.request_id = request.request_id
    if isinstance(request, gateway_pb2.CreateExperimentRequest):
        return error.reworded(say_create(error))
    advice = "; repeat it, which is safe" if error.effect is Effect.UNKNOWN else ""
    return error.reworded(say_effect(error) + advice)


def say_create(error: GanglineError) -> str:
    """Returns the message about an experiment that could not be created, prefixed with what is known of it."""
    return say_effect(error, "the experiment was created", "nothing was created")
