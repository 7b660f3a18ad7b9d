"""One open stream to etcd, for watches and leases.

Owns reading with a time limit, and the translation of everything that can end a stream into one exception. A rotation
that cancels the stream is told from a cancellation of the caller. Opened by `session.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import grpc

from gangline.protocol.peer_status import PeerStatus
from services.common.etcd.connection import EtcdConnection
from services.common.etcd.failure import Remedy, TryFailed, read_failure

_END = "the stream ended"


class Stream:
    def __init__(self, call: Any, connection: EtcdConnection, on_failure: Callable[[Exception], Exception]) -> None:
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
        with self._translated(f"nothing could be sent for {seconds:g} s"):
            async with asyncio.timeout(seconds):
                await self._call.write(message)

    async def ask(self, message: Any, seconds: float) -> Any:
        """Sends a message and returns the next one. Raises TryFailed when that takes longer than so many seconds."""
        with self._translated(f"no answer for {seconds:g} s"):
            async with asyncio.timeout(seconds):
                await self._call.write(message)
                return self._checked(await self._call.read())

    async def read(self, seconds: float | None) -> Any | None:
        """Returns the next message; None when none arrived for so many seconds, and the stream may be read again.
        seconds: None waits without a limit. Raises TryFailed when the stream broke."""
        if self._reading is None:
            # A time limit around the read itself would end the call.
            self._reading = asyncio.ensure_future(_as_coroutine(self._call.read()))
        await asyncio.wait({self._reading}, timeout=seconds)
        if not self._reading.done():
            return None
        reading, self._reading = self._reading, None
        with self._translated(_END):
            return self._checked(reading.result())

    def fail(self, reason: str) -> Exception:
        """Returns the failure of a stream that its reader gives up; moves calls and streams to the next endpoint."""
        return self._on_failure(TryFailed(Remedy.MOVE, f"{self.endpoint}: {reason}"))

    def refuse(self, failure: Exception) -> Exception:
        """Returns a failure like `fail`, for one that etcd put into a message."""
        return self._on_failure(failure)

    def _checked(self, message: Any) -> Any:
        if message is grpc.aio.EOF:
            raise self.fail(_END)
        return message

    @contextmanager
    def _translated(self, on_timeout: str) -> Iterator[None]:
        """Raises TryFailed for what ends a read or a write, but for a cancellation of the caller."""
        try:
            yield
        except TimeoutError:
            raise self.fail(on_timeout) from None
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise TryFailed(Remedy.WAIT, f"{self.endpoint}: left for another endpoint") from None
        except grpc.RpcError as error:
            raise self._on_failure(read_failure(self._peer_status.of(error), self.endpoint)) from error
        except asyncio.InvalidStateError as error:
            raise self.fail(_END) from error

    @staticmethod
    def _take(task: asyncio.Task[Any]) -> None:
        """Reads a result that is not needed, so that asyncio does not log it as never retrieved."""
        if not task.cancelled():
            task.exception()


async def _as_coroutine(awaitable: Coroutine[Any, Any, Any]) -> Any:
    return await awaitable
