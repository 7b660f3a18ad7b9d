"""One open stream to etcd, for watches and leases.

Owns reading with a time limit, and the translation of everything that can end a stream into one exception. Reads and
writes run in tasks of their own. So the cancellation of a stream by a rotation differs from that of the caller, and a
read may outlast its time limit and be awaited again. Opened by `session.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

import grpc

from gangline.protocol.peer_status import PeerStatus
from services.common.etcd.connection import Connection
from services.common.etcd.failure import Remedy, TryFailed, read_failure

_END = "the stream ended"


class Stream:
    def __init__(self, call: Any, connection: Connection, on_failure: Callable[[Exception], Exception]) -> None:
        self.endpoint = connection.endpoint
        self._call = call
        self._peer_status = PeerStatus(call)
        self._connection = connection
        self._on_failure = on_failure
        self._reading: asyncio.Task[Any] | None = None
        connection.streams.add(call)

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.streams.discard(self._call)
        self._call.cancel()
        if self._reading is not None:
            await asyncio.wait({self._reading})
            self._take(self._reading)

    async def write(self, message: Any, seconds: float) -> None:
        """Sends a message. Raises TryFailed when it cannot be sent within so many seconds."""
        writing = asyncio.ensure_future(_as_coroutine(self._call.write(message)))
        await asyncio.wait({writing}, timeout=seconds)
        if not writing.done():
            writing.cancel()
            raise self.fail(f"nothing could be sent for {seconds:g} s")
        self._result_of(writing)

    async def read(self, seconds: float | None = None) -> Any | None:
        """Returns the next message; None when none arrived for so many seconds. Raises TryFailed when the stream
        broke."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(_as_coroutine(self._call.read()))
        await asyncio.wait({self._reading}, timeout=seconds)
        if not self._reading.done():
            return None
        reading, self._reading = self._reading, None
        message = self._result_of(reading)
        if message is grpc.aio.EOF:
            raise self.fail(_END)
        return message

    def fail(self, reason: str) -> Exception:
        """Returns the failure of a stream that its reader gives up; moves calls and streams to the next endpoint."""
        return self._on_failure(TryFailed(Remedy.MOVE, f"{self.endpoint}: {reason}"))

    def refuse(self, failure: Exception) -> Exception:
        """Returns a failure like `fail`, for one that etcd put into a message."""
        return self._on_failure(failure)

    def _result_of(self, task: asyncio.Task[Any]) -> Any:
        if task.cancelled():
            raise TryFailed(Remedy.WAIT, f"{self.endpoint}: left for another endpoint")
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, grpc.RpcError):
            raise self._on_failure(read_failure(self._peer_status.of(error), self.endpoint)) from error
        if isinstance(error, asyncio.InvalidStateError):
            raise self.fail(_END) from error
        raise error

    @staticmethod
    def _take(task: asyncio.Task[Any]) -> None:
        """Reads a result that is not needed, so that asyncio does not log it as never retrieved."""
        if not task.cancelled():
            task.exception()


async def _as_coroutine(awaitable: Coroutine[Any, Any, Any]) -> Any:
    return await awaitable
