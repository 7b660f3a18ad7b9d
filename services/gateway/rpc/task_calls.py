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
from gangline.v1.gateway_pb2_grpc import GatewayServiceServicer
from services.common.concurrency import cancel
from services.common.server import current_principal
from services.gateway.usecase.bundle import UseCases
from services.gateway.usecase.tunnel import Tunnel

Context = Any


class TaskCalls(GatewayServiceServicer):
    """Base of GatewayService."""

    _usecases: UseCases

    async def GetTaskAccess(self, request: pb.GetTaskAccessRequest, context: Context) -> pb.GetTaskAccessResponse:
        access = self._usecases.tunnels.access(current_principal(), request.experiment_id)
        return pb.GetTaskAccessResponse(access=wire.to_proto(access))

    async def ConnectTask(
        self, request_iterator: AsyncIterator[pb.ConnectTaskRequest], context: Context
    ) -> AsyncIterator[pb.ConnectTaskResponse]:
        first = await anext(aiter(request_iterator), None)
        if first is None:
            raise invalid("task.unnamed", "the call was empty; its first message names the task")
        tunnels = self._usecases.tunnels
        experiment = tunnels.find(current_principal(), first.experiment_id)
        with await tunnels.open(experiment) as tunnel:
            # The first answer tells the caller that the connection is made.
            yield pb.ConnectTaskResponse()
            forwarding = asyncio.create_task(_forward(first.data, request_iterator, tunnel))
            try:
                while data := await tunnel.read():
                    yield pb.ConnectTaskResponse(data=data)
            finally:
                await cancel(forwarding)


async def _forward(first: bytes, requests: AsyncIterator[pb.ConnectTaskRequest], tunnel: Tunnel) -> None:
    """Writes what the caller sends. The end of its requests ends the connection."""
    try:
        with suppress(ConnectionError):
            if first:
                await tunnel.write(first)
            async for request in requests:
                await tunnel.write(request.data)
    finally:
        tunnel.close()
