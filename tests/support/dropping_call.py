"""A gRPC call that drops the cancellation of its caller and fails instead, as grpc.aio does if both happen at once."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import grpc
import grpc.aio


class DroppingCall:
    """In the place of a stub, of any of its methods, or of a method. has_begun: set while the caller waits."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()

    def __getattr__(self, name: str) -> DroppingCall:
        return self

    async def __call__(self, *_: Any, **__: Any) -> NoReturn:
        self.has_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            no_metadata = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, no_metadata, no_metadata) from None
        raise AssertionError
