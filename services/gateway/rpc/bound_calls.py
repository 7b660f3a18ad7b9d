"""The base of GatewayService's classes: makes the use cases of each call for its caller."""

from __future__ import annotations

from google.protobuf.message import Message

from gangline.v1.gateway_pb2_grpc import GatewayServiceServicer
from services.common.server import current_principal
from services.gateway.usecase.bundle import UseCases, UserCases


class BoundCalls(GatewayServiceServicer):
    def __init__(self, usecases: UseCases) -> None:
        self._usecases = usecases

    def _cases(self, request: Message) -> UserCases:
        """Returns the use cases of this call. request: names the id of a change; reads have none. Raises GanglineError
        `auth.forbidden`."""
        return self._usecases.of(current_principal(), getattr(request, "request_id", None))
