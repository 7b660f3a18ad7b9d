"""The base of stand-ins for a gateway, which answer the calls that their tests make, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.v1 import gateway_pb2_grpc

if TYPE_CHECKING:

    class Servicer:
        """The generated class, without its methods: for a type checker each call would need one here."""

else:
    Servicer = gateway_pb2_grpc.GatewayServiceServicer
