"""The connection to a cluster through any of its gateways, for asyncio.

It sends, waits and sleeps; gangline.client.attempts decides. Its twin for calls that block is
gangline.client.connection. A cancelled call cancels its request at the gateway.

A client may follow hundreds of experiments. A server serves SERVER_OPTIONS' max_concurrent_streams calls on one
connection, and further ones wait. So streams use connections of their own, with a limit for each of them, and calls
never wait behind streams.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, cast

import grpc

from gangline.client.attempts import Attempts, Route, error_of_change, find_effects
from gangline.client.connection import AnyStub, dialer_to
from gangline.errors import Effect, GanglineError, conflict
from gangline.login import Login, say_gateways
from gangline.protocol import rpc
from gangline.protocol.dialer import Dialer
from gangline.v1 import gateway_pb2_grpc

P = ParamSpec("P")
T = TypeVar("T")
# The calls of one client that are under way at a time; further ones wait.
MOST_CALLS = 64
# Below the server's limit for one connection, which is 256.
_STREAMS_OF_LANE = 200
# The streams of one client that are open at a time.
MOST_STREAMS = 2000
# Channels with equal arguments share one connection, except where each has a pool of its own.
_OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)


class _Lane:
    """One connection to a gateway. num_streams: how many streams it carries."""

    def __init__(self, address: str, dialer: Dialer) -> None:
        self.version = dialer.version
        self._channel = dialer.open_async(address, [*rpc.CHANNEL_OPTIONS, _OWN_CONNECTION])
        self.stub = gateway_pb2_grpc.GatewayServiceStub(self._channel)
        self.num_streams = 0

    async def close(self) -> None:
        await self._channel.close()


class _Gateway:
    """One gateway and its connections, which are made in the event loop of the first call."""

    def __init__(self, address: str, dialer: Dialer) -> None:
        self._dialer = dialer
        self.target = say_gateways([address])
        self._address = address
        self._calls: _Lane | None = None
        self._lanes: list[_Lane] = []
        self._former: list[_Lane] = []

    @property
    def stub(self) -> Any:
        """Returns the stub for calls that are no streams."""
        if self._calls is None or self._calls.version != self._dialer.version:
            if self._calls is not None:
                # Calls that are under way keep the former connection.
                self._former.append(self._calls)
            self._calls = _Lane(self._address, self._dialer)
        return self._calls.stub

    @contextmanager
    def lane(self) -> Iterator[_Lane]:
        """Reserves a place for a stream on one of the connections."""
        version = self._dialer.version
        free = (lane for lane in self._lanes if lane.version == version and lane.num_streams < _STREAMS_OF_LANE)
        lane = next(free, None)
        if lane is None:
            lane = _Lane(self._address, self._dialer)
            self._lanes.append(lane)
        lane.num_streams += 1
        try:
            yield lane
        finally:
            lane.num_streams -= 1

    async def close(self) -> None:
        for lane in (*self._lanes, *self._former, *([self._calls] if self._calls else [])):
            await lane.close()


class AsyncConnection(Route[_Gateway]):
    """Does the same as `Connection`, in one event loop."""

    def __init__(self, login: Login, call_seconds: float, retry_seconds: float | None) -> None:
        gateways = [_Gateway(address, dialer_to(login)) for address in login.addresses]
        super().__init__(login, call_seconds, retry_seconds, gateways)
        self.stub = cast("gateway_pb2_grpc.GatewayServiceStub", AnyStub())
        self._places = asyncio.Semaphore(MOST_CALLS)
        self._num_streams = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    async def close(self) -> None:
        for gateway in self.gateways:
            await gateway.close()

    async def call(
        self, method: Callable[..., T], request: Any, *, is_open: bool = False, seconds: float | None = None
    ) -> T:
        """See `Connection.call`."""
        self._check_loop()
        effects = find_effects(request, is_open=is_open)
        attempts = Attempts(self, effects)
        try:
            return cast("T", await self._call(method, request, attempts, seconds))
        except GanglineError as error:
            if effects is None:
                raise
            raise error_of_change(error, request, effects) from error

    async def _stream(
        self,
        method: Callable[..., Any],
        make_request: Callable[[], Any],
        attempts: Attempts[_Gateway],
        seconds: float | None,
    ) -> AsyncIterator[Any]:
        """Raises GanglineError `client.too_many_streams`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._place_for_stream():
            while True:
                timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
                with attempts.gateway.lane() as lane:
                    messages = method(lane, make_request(), timeout=timeout, metadata=attempts.metadata)
                    began_at, has_message = time.monotonic(), False
                    try:
                        async for message in messages:
                            attempts.succeed()
                            has_message = True
                            yield message
                    except grpc.RpcError as failure:
                        rpc.raise_if_cancelled()
                        pause = attempts.lose(failure, time.monotonic() - began_at, has_message=has_message)
                    else:
                        return
                    finally:
                        messages.cancel()
                await asyncio.sleep(pause)

    async def _call(
        self, method: Callable[..., Any], request: Any, attempts: Attempts[_Gateway], seconds: float | None
    ) -> Any:
        while True:
            async with self._places:
                sent = request() if callable(request) else request
                try:
                    timeout = seconds or self.call_seconds
                    answer = await method(attempts.gateway, sent, timeout=timeout, metadata=attempts.metadata)
                except grpc.RpcError as failure:
                    rpc.raise_if_cancelled()
                    pause = attempts.fail(failure)
                else:
                    attempts.succeed()
                    return answer
            await asyncio.sleep(pause)

    @contextmanager
    def _place_for_stream(self) -> Iterator[None]:
        self._check_loop()
        if self._num_streams >= MOST_STREAMS:
            raise conflict(
                "client.too_many_streams",
                f"this client reads {MOST_STREAMS} streams already; end some of them, or use another client",
            )
        self._num_streams += 1
        try:
            yield
        finally:
            self._num_streams -= 1

    def _check_loop(self) -> None:
        """Raises GanglineError `client.other_loop` in another event loop than that of the first call. The connections
        belong to that loop, and a call from another one would never end."""
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if loop is not self._loop:
            error = conflict(
                "client.other_loop",
                "this AsyncClient was used in another event loop; make a client in each asyncio.run",
            )
            error.effect = Effect.NONE
            raise error


async def pause_for(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def in_thread(function: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> T:
    """Calls a function in a thread. A cancelled call leaves the thread to itself."""
    return await asyncio.to_thread(function, *arguments, **options)


async def in_thread_to_its_end(function: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> T:
    """Calls a function in a thread. A cancelled call ends after the function, so that its caller may clean up."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments, **options))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
