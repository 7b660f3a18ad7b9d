"""Configures every grpc channel and server of Gangline, and maps errors across the wire.

Owns the channel options, the bearer token in the metadata, and the mapping between GanglineError and grpc status. The
options include the ping timeout without which a hung peer stays unnoticed for 60 s. The module opens no channel by
itself and retries nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import grpc

from gangline.errors import Effect, ErrorKind, GanglineError
from gangline.protocol import transport_fault
from gangline.v1 import types_pb2

AUTHORIZATION_KEY = "authorization"
ERROR_KEY = "gangline-error-bin"
# A client that changes to another gateway sends it until that one has answered. So it reads nothing older there than
# what it knows already.
CATCH_UP_METADATA = (("gangline-catch-up", "1"),)
# The size of one chunk of a streamed content, 1 MiB.
CHUNK_BYTES = 1 << 20

# The largest message that a server accepts. Larger contents are streamed in chunks; a method may have a limit of its
# own.
MAX_MESSAGE_BYTES = 4 << 20
# Room for an error's message, which crosses the wire twice: as text in percent encoding and in ErrorDetail.
MAX_METADATA_BYTES = 32 << 10

# Since grpc 1.60 a keepalive ping has a timeout of its own, 60 s by default. Without ping_timeout_ms a host that is
# gone is noticed a minute late. With less than 5 s between pings, etcd and grpc servers answer "too many pings".
CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.ping_timeout_ms", 3000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.enable_http_proxy", 0),
]

# For connections inside a cluster that carry small messages all the time. grpc pings the sender of each message in
# order to learn how much the network can hold, which wakes both processes once more. Without that, and without the
# second option, only 64 KiB of a large one are on the way at a time: 5 MiB over 20 ms take 0.2 s in place of 0.06 s.
SMALL_MESSAGES = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4 << 20)]
SMALL_MESSAGE_OPTIONS = [*CHANNEL_OPTIONS, *SMALL_MESSAGES]

# A server closes a connection that has not finished its handshake in 10 s, or that carries no call for 2 minutes. It
# counts strikes for pings that arrive too often. 100 strikes leave room for a peer whose clock jumps, and still end a
# flood.
SERVER_OPTIONS: list[tuple[str, int]] = [
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.ping_timeout_ms", 3000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 4000),
    ("grpc.http2.max_ping_strikes", 100),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 120_000),
    ("grpc.max_allowed_incoming_connections", 4096),
    ("grpc.max_concurrent_streams", 256),
    ("grpc.so_reuseport", 0),
]

_STATUS_BY_KIND = {
    ErrorKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorKind.ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    ErrorKind.CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorKind.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    ErrorKind.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    ErrorKind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorKind.INTERNAL: grpc.StatusCode.INTERNAL,
}
_KIND_BY_STATUS = {status: kind for kind, status in _STATUS_BY_KIND.items()}
_KIND_BY_NUMBER = {int(status.value[0]): kind for status, kind in _KIND_BY_STATUS.items()}
_NUMBER_BY_EFFECT = {Effect.NONE: types_pb2.EFFECT_NONE, Effect.UNKNOWN: types_pb2.EFFECT_UNKNOWN}
_EFFECT_BY_NUMBER = {number: effect for effect, number in _NUMBER_BY_EFFECT.items()}


def token_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """Returns the metadata that carries a bearer token; never log it."""
    return ((AUTHORIZATION_KEY, f"Bearer {token}"),)


def find_token(metadata: Iterable[tuple[str, Any]] | None) -> str | None:
    """Returns the bearer token in a call's metadata, or None without one."""
    for key, value in metadata or ():
        if key == AUTHORIZATION_KEY and isinstance(value, str) and value.startswith("Bearer "):
            return value.removeprefix("Bearer ")
    return None


def asks_to_catch_up(metadata: Iterable[tuple[str, Any]] | None) -> bool:
    """Returns whether the metadata of a call has CATCH_UP_METADATA."""
    return any(entry in CATCH_UP_METADATA for entry in map(tuple, metadata or ()))


def status_of(error: GanglineError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Returns the status, message and trailing metadata with which a server aborts a call."""
    return _STATUS_BY_KIND[error.kind], error.message, ((ERROR_KEY, detail_of(error).SerializeToString()),)


def detail_of(error: GanglineError) -> types_pb2.ErrorDetail:
    """Returns what crosses the wire of an error, beside its status."""
    return types_pb2.ErrorDetail(
        code=error.code,
        message=error.message,
        effect=_NUMBER_BY_EFFECT[error.effect],
        leader_address=error.leader_address,
    )


def status_number_of(error: GanglineError) -> int:
    """Returns the number of the status with which a server aborts a call."""
    return int(_STATUS_BY_KIND[error.kind].value[0])


def error_in(detail: types_pb2.ErrorDetail, status_number: int) -> GanglineError:
    """Returns the GanglineError that a failed call, or one part of an answer, carries."""
    kind = _KIND_BY_NUMBER.get(status_number, ErrorKind.INTERNAL)
    error = GanglineError(detail.code, detail.message, kind, _EFFECT_BY_NUMBER.get(detail.effect))
    error.leader_address = detail.leader_address
    return error


def error_of(failure: grpc.RpcError, target: str, remedy: str = transport_fault.CHECK) -> GanglineError:
    """Converts the failure of a call to a GanglineError.

    target: the called peer, as "the gateway at 10.0.0.1:8081", for failures without a detail of Gangline. remedy: for a
    peer that does not answer.
    """
    detail = _find_detail(failure)
    if detail is not None:
        return error_in(detail, int(failure.code().value[0]))
    status = failure.code()
    kind = _KIND_BY_STATUS.get(status, ErrorKind.INTERNAL)
    if kind is ErrorKind.UNAVAILABLE:
        fault = transport_fault.unreachable(failure.details() or "", remedy)
        return GanglineError("rpc.unreachable", f"cannot reach {target}: {fault.words}", kind, fault.effect)
    if kind is ErrorKind.TIMEOUT:
        return GanglineError("rpc.timeout", f"{target} did not answer in time; try again", kind)
    return GanglineError(
        "rpc.failed", f"{target} {transport_fault.refused(status.name, failure.details() or '')}", kind
    )


def is_answer(failure: grpc.RpcError) -> bool:
    """Returns whether the peer itself has answered with an error of Gangline, unlike a connection that broke."""
    return _find_detail(failure) is not None


def is_unknown_method(error: GanglineError) -> bool:
    """Returns whether a call failed because its peer, of an older version, does not have the method."""
    failure = error.__cause__
    return isinstance(failure, grpc.RpcError) and failure.code() is grpc.StatusCode.UNIMPLEMENTED


def find_leader(failure: grpc.RpcError) -> str:
    """Returns "host:port" of the scheduler that leads where the failed call's answer names it; else an empty string."""
    detail = _find_detail(failure)
    return detail.leader_address if detail is not None else ""


def _find_detail(failure: grpc.RpcError) -> types_pb2.ErrorDetail | None:
    """Returns None for a failure that carries no detail of Gangline."""
    metadata = cast("Iterable[tuple[str, Any]] | None", failure.trailing_metadata())
    for key, value in metadata or ():
        if key == ERROR_KEY:
            return types_pb2.ErrorDetail.FromString(value)
    return None


def raise_if_cancelled() -> None:
    """Raises CancelledError if the current task was cancelled. Called where a loop goes on after a failed call.

    grpc.aio drops a cancellation that arrives just when a call fails: it raises the failure of the call instead (seen
    with grpcio 1.85). A loop that then tries again would never end, and whoever cancelled it would wait forever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
