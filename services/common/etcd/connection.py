"""One grpc channel for each etcd endpoint, and the choice of the one in use.

A member that lost its quorum keeps its TCP connections and answers, so grpc's own balancing never leaves it. Instead
every call and every open stream uses one endpoint, and the first failure moves all of them to the next. Owns channels,
TLS and rotation; knows nothing of the requests. Used by `session.py` only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import structlog

from gangline.errors import invalid
from gangline.protocol.rpc import SMALL_MESSAGE_OPTIONS
from services.common.access.secret_file import read_secret
from services.common.etcd.metrics import ROTATIONS
from services.common.etcd.settings import EtcdSettings
from services.common.etcd.stub import Operation, methods_of

_log = structlog.get_logger(__name__)

# etcd closes a connection that pings more often than every 5 s, or that pings at all while no call is open. A ping at
# exactly 5 s is early every second time, hence 7 s. A list of 5000 values may exceed any useful limit on a message;
# etcd itself bounds what it stores.
_OWN_OPTIONS = {
    "grpc.keepalive_time_ms": 7000,
    "grpc.keepalive_permit_without_calls": 0,
    "grpc.max_receive_message_length": -1,
}
# A socket of this machine, protected by its mode and its folder, needs no TLS.
_UNIX = "unix:"
_OPTIONS = [*(dict(SMALL_MESSAGE_OPTIONS) | _OWN_OPTIONS).items()]


class EtcdConnection:
    """Holds a channel to one endpoint, with the streams that are open on it."""

    def __init__(self, endpoint: str, channel: grpc.aio.Channel) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.methods: dict[Operation, Callable[..., Any]] = methods_of(channel)
        self.streams: set[Any] = set()

    def cancel_streams(self) -> None:
        """Cancels the open streams. Their readers see a cancellation that did not come from their own task, and reopen
        elsewhere."""
        for stream in tuple(self.streams):
            stream.cancel()


class Rotation:
    """Holds all endpoints, in the order in which they are tried. Channels open on first use."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._credentials = _load_credentials(settings)
        self._endpoints = [_parse_endpoint(endpoint) for endpoint in settings.endpoints]
        self._connections: dict[int, EtcdConnection] = {}
        self._position = 0

    @property
    def num_endpoints(self) -> int:
        return len(self._endpoints)

    @property
    def current(self) -> EtcdConnection:
        return self._at(self._position)

    def all(self) -> list[EtcdConnection]:
        """Returns one connection for each endpoint, in the order of the settings."""
        return [self._at(position) for position in range(self.num_endpoints)]

    def rotate(self, failed: EtcdConnection, reason: str) -> None:
        """Moves on from `failed`, unless another call already did. With a single endpoint it does nothing."""
        # Another call may have seen the same failure first; a second rotation would skip a healthy endpoint.
        if self.num_endpoints == 1 or failed is not self.current:
            return
        self._position = (self._position + 1) % self.num_endpoints
        ROTATIONS.inc()
        _log.warning("etcd endpoint changed", left=failed.endpoint, now=self.current.endpoint, reason=reason)
        failed.cancel_streams()

    async def close(self) -> None:
        for connection in self._connections.values():
            connection.cancel_streams()
            await connection.channel.close()
        self._connections.clear()

    def _at(self, position: int) -> EtcdConnection:
        if position not in self._connections:
            self._connections[position] = self._open(*self._endpoints[position])
        return self._connections[position]

    def _open(self, address: str, is_secure: bool) -> EtcdConnection:
        if address.startswith(_UNIX):
            return EtcdConnection(address, grpc.aio.insecure_channel(address, options=_OPTIONS))
        credentials = self._credentials or (grpc.ssl_channel_credentials() if is_secure else None)
        if credentials is None:
            return EtcdConnection(address, grpc.aio.insecure_channel(address, options=_OPTIONS))
        return EtcdConnection(address, grpc.aio.secure_channel(address, credentials, options=_OPTIONS))


def _parse_endpoint(endpoint: str) -> tuple[str, bool]:
    if endpoint.startswith(_UNIX) and len(endpoint) > len(_UNIX):
        return endpoint, False
    scheme, separator, address = endpoint.rpartition("://")
    if (separator and scheme not in ("http", "https")) or ":" not in address:
        raise invalid(
            "etcd.bad_endpoint",
            f"etcd endpoint {endpoint!r} is not of the form host:port, https://host:port or unix:path",
        )
    return address.rstrip("/"), scheme == "https"


def _load_credentials(settings: EtcdSettings) -> grpc.ChannelCredentials | None:
    if (settings.cert_file is None) != (settings.key_file is None):
        raise invalid("etcd.half_certificate", "etcd.cert_file and etcd.key_file belong together; set both or neither")
    if settings.ca_file is None and settings.cert_file is None:
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=_read(settings.ca_file),
        private_key=_read(settings.key_file, is_secret=True),
        certificate_chain=_read(settings.cert_file),
    )


def _read(path: Path | None, is_secret: bool = False) -> bytes | None:
    if path is None:
        return None
    try:
        return read_secret(path) if is_secret else path.read_bytes()
    except OSError as error:
        raise invalid(
            "etcd.unreadable_file", f"cannot read {path}: {error.strerror}; check the etcd settings"
        ) from error
