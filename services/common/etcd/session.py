"""One call to etcd: its tries, its deadline, its token.

Owns the rule that a call has 1.5 s at one member and then goes to the next, until its overall deadline. Every request
of Gangline may be applied twice without harm, so every call is retried. A caller that must know about a retry
(transactions) reads `Answer.is_retried`. Used by the modules of this package only.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Any

import grpc

from gangline.errors import unavailable
from gangline.protocol.rpc import raise_if_cancelled
from services.common.etcd.connection import EtcdConnection, Rotation
from services.common.etcd.credential import Credential, Metadata
from services.common.etcd.failure import Remedy, TryFailed, read_failure
from services.common.etcd.metrics import CALL_SECONDS, FAILED_TRIES
from services.common.etcd.settings import EtcdSettings
from services.common.etcd.stream import Stream
from services.common.etcd.stub import Operation


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """Holds the answer to a call."""

    message: Any
    is_retried: bool  # an earlier try of the same call failed, and etcd may have applied it all the same


class EtcdSession:
    """Holds what all calls of one client share."""

    def __init__(self, settings: EtcdSettings) -> None:
        self.settings = settings
        self.rotation = Rotation(settings)
        self._credential = Credential(settings)

    async def call(self, operation: Operation, request: Any, deadline_seconds: float | None = None) -> CallAnswer:
        """Retries until a try works. Raises GanglineError `etcd.unreachable` at the deadline, or the error of a
        refusal."""
        seconds = self.settings.deadline_seconds if deadline_seconds is None else deadline_seconds
        deadline = time.monotonic() + seconds
        num_tries = 0
        with CALL_SECONDS.labels(operation.name.lower()).time():
            while True:
                left = deadline - time.monotonic()
                try:
                    message = await self.try_once(operation, request, min(left, self._try_seconds(num_tries)))
                    return CallAnswer(message, is_retried=num_tries > 0)
                except TryFailed as failure:
                    num_tries += 1
                    pause = pause_seconds(num_tries)
                    # No try fits into the rest of the time.
                    if time.monotonic() + pause >= deadline:
                        raise self._unreachable(seconds, failure) from failure
                await asyncio.sleep(pause)

    async def call_once(self, operation: Operation, request: Any, try_seconds: float) -> Any:
        """Makes a call of a single try. Raises as `try_once`."""
        with CALL_SECONDS.labels(operation.name.lower()).time():
            return await self.try_once(operation, request, try_seconds)

    async def try_once(self, operation: Operation, request: Any, try_seconds: float) -> Any:
        """Makes one try at the endpoint in use. Raises TryFailed after it has prepared the next try."""
        connection = self.rotation.current
        metadata: Metadata = ()
        try:
            metadata = await self._credential.metadata(connection)
            return await connection.methods[operation](request, metadata=metadata, timeout=try_seconds)
        except grpc.RpcError as error:
            raise_if_cancelled()
            FAILED_TRIES.labels(operation.name.lower(), error.code().name.lower()).inc()
            raise self.make_way(connection, metadata, read_failure(error, connection.endpoint)) from error

    async def ask(self, connection: EtcdConnection, operation: Operation, request: Any, seconds: float) -> Any:
        """Makes one try at this endpoint, whichever is in use. A failure rotates nothing. Raises grpc.RpcError."""
        metadata = await self._credential.metadata(connection)
        try:
            return await connection.methods[operation](request, metadata=metadata, timeout=seconds)
        except grpc.RpcError as error:
            failure = read_failure(error, connection.endpoint)
            if isinstance(failure, TryFailed) and failure.remedy is Remedy.LOGIN:
                self._credential.forget(metadata)
            raise

    async def open(self, operation: Operation) -> Stream:
        """Opens a stream at the endpoint in use. Raises like `try_once`."""
        connection = self.rotation.current
        metadata: Metadata = ()
        try:
            metadata = await self._credential.metadata(connection)
        except grpc.RpcError as error:
            raise self.make_way(connection, metadata, read_failure(error, connection.endpoint)) from error
        call = connection.methods[operation](metadata=metadata)
        return Stream(call, connection, lambda failure: self.make_way(connection, metadata, failure))

    def make_way(self, connection: EtcdConnection, metadata: Metadata, failure: Exception) -> Exception:
        """Does what a failure requires before the next try, and returns the failure."""
        if isinstance(failure, TryFailed):
            if failure.remedy is Remedy.MOVE:
                self.rotation.rotate(connection, failure.reason)
            elif failure.remedy is Remedy.LOGIN:
                if not self._credential.has_user:
                    return unavailable("etcd.user_needed", f"etcd asks for a user: set etcd.user ({failure.reason})")
                self._credential.forget(metadata)
        return failure

    def _try_seconds(self, num_tries: int) -> float:
        """Returns the time limit of a try. It doubles with each round of all endpoints, so that a slow store still gets
        to answer."""
        return self.settings.try_seconds * float(2 ** min(num_tries // self.rotation.num_endpoints, 6))

    def _unreachable(self, seconds: float, failure: TryFailed) -> Exception:
        endpoints = ", ".join(self.settings.endpoints)
        return unavailable(
            "etcd.unreachable",
            f"no etcd answered within {seconds:g} s at {endpoints}; start etcd or correct --etcd-endpoints "
            f"(last: {failure.reason})",
        )


def pause_seconds(num_tries: int) -> float:
    """Returns the back-off before the next try: 20 ms to at most half a second, random so that clients do not retry in
    step."""
    return random.uniform(0.02, min(0.5, 0.05 * 2**num_tries))  # noqa: S311 - spreads load, keeps no secret
