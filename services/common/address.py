"""Addresses of the form host:port: parsing them, explaining why one cannot be listened on, and choosing the advertised
one.

Used wherever a service listens. It opens no lasting socket; `server.py`, `telemetry.py` and the gateway do.
"""

from __future__ import annotations

import errno
import socket

from gangline.errors import ErrorKind, GanglineError, invalid

_WILDCARDS = {"0.0.0.0", "::", ""}  # noqa: S104 - recognised here, not bound


def split_address(address: str) -> tuple[str, int]:
    """Splits "127.0.0.1:0" and "[::1]:8082" alike; the returned host has no brackets. Raises GanglineError
    `server.bad_address`."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise invalid("server.bad_address", f"{address!r} is not of the form host:port; port 0 takes a free one")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def advertised_address(address: str, advertise_host: str | None) -> str:
    """Returns the address at which other machines connect.

    advertise_host: set by the operator. Without it, a service that listens on every interface advertises the one that
    leads out of this machine.
    """
    host, port = split_address(address)
    if advertise_host:
        return join_address(advertise_host, port)
    return join_address(_outward_host() if host in _WILDCARDS else host, port)


def bind_error(listen: str, error: OSError, flag: str) -> GanglineError:
    """Explains to the operator why a service cannot listen there."""
    if error.errno == errno.EADDRINUSE:
        return GanglineError(
            "server.port_in_use",
            f"cannot listen on {listen}: the port is in use; stop what uses it or choose another with {flag}",
            ErrorKind.CONFLICT,
        )
    return invalid("server.cannot_listen", f"cannot listen on {listen}: {error.strerror or error}; change {flag}")


def _outward_host() -> str:
    """Returns the address that the kernel would use towards another network; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # 192.0.2.1 is reserved for documentation (RFC 5737); connecting a UDP socket only looks up the route.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])
