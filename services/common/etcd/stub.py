"""The only module that imports etcd's generated messages and stubs.

They come from the package aetcd. Its own client is not used: it knows one endpoint, no TLS and no token renewal, and
its watches can die silently. Never load a second copy of etcd's protos into the same process: the descriptor pool
refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import grpc
import grpc.aio
from aetcd.rpc import kv_pb2, rpc_pb2, rpc_pb2_grpc

messages: Any = rpc_pb2
DELETED: int = kv_pb2.Event.DELETE


class Operation(Enum):
    """Lists the methods that Gangline calls: service and method."""

    RANGE = ("KV", "Range")
    TXN = ("KV", "Txn")
    COMPACT = ("KV", "Compact")
    LEASE_GRANT = ("Lease", "LeaseGrant")
    LEASE_REVOKE = ("Lease", "LeaseRevoke")
    KEEP_ALIVE = ("Lease", "LeaseKeepAlive")
    WATCH = ("Watch", "Watch")
    STATUS = ("Maintenance", "Status")
    MEMBERS = ("Cluster", "MemberList")
    AUTHENTICATE = ("Auth", "Authenticate")


def methods_of(channel: grpc.aio.Channel | grpc.Channel) -> dict[Operation, Callable[..., Any]]:
    """Returns every operation as a callable on this channel."""
    stubs: dict[str, Any] = {}
    for operation in Operation:
        service = operation.value[0]
        if service not in stubs:
            stubs[service] = getattr(rpc_pb2_grpc, f"{service}Stub")(channel)
    return {operation: getattr(stubs[operation.value[0]], operation.value[1]) for operation in Operation}
