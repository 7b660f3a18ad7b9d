"""The connection to a cluster through any of its gateways, for calls that block.

It sends, waits and sleeps; gangline.client.attempts decides. Only requests that are safe to repeat use it: reads, and
changes that carry a request id. Its twin for asyncio is gangline.client.async_connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, cast

import grpc

from gangline.client.attempts import Attempts, Route, error_of_change, find_effects
from gangline.errors import GanglineError
from gangline.login import Login, say_gateways
from gangline.protocol import rpc
from gangline.protocol.dialer import Dialer, TlsFiles, dialer_of
from gangline.v1 import gateway_pb2_grpc

P = ParamSpec("P")
T = TypeVar("T")


def dialer_to(login: Login) -> Dialer:
    """Returns what opens channels to the gateways of a login, whose certificates have the host names of their
    addresses."""
    return dialer_of(TlsFiles(login.ca_file) if login.ca_file else None)


class _Gateway:
    """One gateway and its channel, which connects with the first call."""

    def __init__(self, address: str, dialer: Dialer) -> None:
        self.target = say_gateways([address])
        self._address = address
        self._dialer = dialer
        self._version = dialer.version
        self._channels = [dialer.open(address, rpc.CHANNEL_OPTIONS)]
        self._stub = gateway_pb2_grpc.GatewayServiceStub(self._channels[-1])

    @property
    def stub(self) -> gateway_pb2_grpc.GatewayServiceStub:
        version = self._dialer.version
        if version != self._version:
            # Calls that are under way keep the former channel.
            self._channels.append(self._dialer.open(self._address, rpc.CHANNEL_OPTIONS))
            self._stub, self._version = gateway_pb2_grpc.GatewayServiceStub(self._channels[-1]), version
        return self._stub

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


class AnyStub:
    """Has the methods of a GatewayServiceStub. Each takes an object with a stub before the arguments of a call."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda owner, *arguments, **options: getattr(owner.stub, name)(*arguments, **options)


class Connection(Route[_Gateway]):
    """Calls the gateways of a cluster with retries. call_seconds, retry_seconds: as for `Route`."""

    def __init__(self, login: Login, call_seconds: float, retry_seconds: float | None) -> None:
        gateways = [_Gateway(address, dialer_to(login)) for address in login.addresses]
        super().__init__(login, call_seconds, retry_seconds, gateways)
        self.stub = cast("gateway_pb2_grpc.GatewayServiceStub", AnyStub())

    def close(self) -> None:
        for gateway in self.gateways:
            gateway.close()

    def call(self, method: Callable[..., T], request: Any, *, is_open: bool = False, seconds: float | None = None) -> T:
        """Calls a method of `stub` and returns its one answer. request: a message, or a function that makes a fresh
        iterator of them for each attempt.

        A message with a request id is a change, which is sent again after a timeout too. Its error reports what is
        known of its effect. is_open: an earlier call with this request id may have made the change. seconds: for each
        attempt; None for call_seconds.
        """
        effects = find_effects(request, is_open=is_open)
        attempts = Attempts(self, effects)
        try:
            return self._call(method, request, attempts, seconds)
        except GanglineError as error:
            if effects is None:
                raise
            raise error_of_change(error, request, effects) from error

    def _stream(
        self,
        method: Callable[..., Any],
        make_request: Callable[[], Any],
        attempts: Attempts[_Gateway],
        seconds: float | None,
    ) -> Iterator[Any]:
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            messages = method(attempts.gateway, make_request(), timeout=timeout, metadata=attempts.metadata)
            began_at, has_message = time.monotonic(), False
            try:
                for message in messages:
                    attempts.succeed()
                    has_message = True
                    yield message
            except grpc.RpcError as failure:
                pause = attempts.lose(failure, time.monotonic() - began_at, has_message=has_message)
            else:
                return
            finally:
                messages.cancel()
            time.sleep(pause)

    def _call(self, method: Callable[..., T], request: Any, attempts: Attempts[_Gateway], seconds: float | None) -> T:
        while True:
            sent = request() if callable(request) else request
            try:
                answer = method(
                    attempts.gateway, sent, timeout=seconds or self.call_seconds, metadata=attempts.metadata
                )
            except grpc.RpcError as failure:
                pause = attempts.fail(failure)
            else:
                attempts.succeed()
                return answer
            time.sleep(pause)


def pause_for(seconds: float) -> None:
    """Sleeps. The asynchronous client waits here."""
    time.sleep(seconds)


def in_thread(function: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> T:
    """Calls a function that takes long. The asynchronous client calls it in a thread, whose work a cancelled call
    leaves to itself."""
    return function(*arguments, **options)


def in_thread_to_its_end(function: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> T:
    """Calls a function that takes long. The asynchronous client calls it in a thread, and a cancelled call ends after
    it. So the caller may clean up what the function has made."""
    return function(*arguments, **options)
