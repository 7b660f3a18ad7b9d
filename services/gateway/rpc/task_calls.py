"""The calls of GatewayService about shells and notebooks."""

# ruff: noqa: N802  the methods are named by the proto

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from gangline.errors import invalid
from gangline.protocol import wire
from gangline.v1 import gateway_pb2 as pb
from services.common.concurrency import cancel
from services.gateway.rpc.bound_calls import BoundCalls
from services.gateway.usecase.shared.tunnel_table import AdmittedTunnel

Context = Any


class TaskCalls(BoundCalls):
    async def GetTaskAccess(self, request: pb.GetTaskAccessRequest, context: Context) -> pb.GetTaskAccessResponse:
        access = self._cases(request).tunnels.access(request.experiment_id)
        return pb.GetTaskAccessResponse(access=wire.to_proto(access))

    async def ConnectTask(
        self, request_iterator: AsyncIterator[pb.ConnectTaskRequest], context: Context
    ) -> AsyncIterator[pb.ConnectTaskResponse]:
        first = await anext(aiter(request_iterator), None)
        if first is None:
            raise invalid("task.unnamed", "the call was empty; its first message names the task")
        tunnels = self._cases(first).tunnels
        with await tunnels.open(first.experiment_id) as opened:
            tunnel = AdmittedTunnel(opened, lambda: tunnels.find(first.experiment_id))
            # The first answer tells the caller that the connection is made.
            yield pb.ConnectTaskResponse()
            forwarding = asyncio.create_task(_forward(first.data, request_iterator, tunnel))
            try:
                while data := await tunnel.read():
                    yield pb.ConnectTaskResponse(data=data)
            finally:
                await cancel(forwarding)


async def _forward(first: bytes, requests: AsyncIterator[pb.ConnectTaskRequest], tunnel: AdmittedTunnel) -> None:
    """Writes what the caller sends. The end of its requests ends the connection."""
    try:
        with suppress(ConnectionError):
            if first:
                await tunnel.write(first)
            async for request in requests:
                await tunnel.write(request.data)
    finally:
        tunnel.close()
