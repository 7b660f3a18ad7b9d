"""Keeps the status with which a peer ends a stream.

If a message is written while the end of a stream arrives, grpc.aio replaces the peer's status by INTERNAL, "Internal
error from Core" (seen with grpcio 1.85; https://github.com/grpc/grpc/issues/36066). The reason is then lost: a token
that is not valid, or the address of the scheduler that leads.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import grpc
import grpc.aio


class PeerStatus:
    """Belongs to one call, from before its first message."""

    def __init__(self, call: Any) -> None:
        self._failure: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._keep)

    def of(self, failure: grpc.RpcError) -> grpc.RpcError:
        """Returns the failure of the call with the status of the peer; the same failure where the peer sent none."""
        return self._failure or failure

    def _keep(self, call: Any) -> None:
        """Runs once, as the first status arrives and before another one can replace it."""
        code = _value_of(call.code())
        if code is None or code is grpc.StatusCode.OK:
            return
        self._failure = grpc.aio.AioRpcError(
            code,
            _value_of(call.initial_metadata()) or grpc.aio.Metadata(),
            _value_of(call.trailing_metadata()) or grpc.aio.Metadata(),
            _value_of(call.details()),
            _value_of(call.debug_error_string()),
        )


def _value_of(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Returns what a coroutine returns that need not wait; None if it would have to."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    return None
