"""Finds ports for a cluster that keeps them over restarts of its services.

They are taken from below the range that the kernel gives to outgoing connections. The kernel could give a port from
that range to another process while a dead service is not listening.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Collection
from pathlib import Path

from gangline.errors import unavailable

HOST = "127.0.0.1"
_FIRST = 12000
_TRIES = 2000


def find_free_ports(count: int, taken: Collection[int] = ()) -> list[int]:
    """Returns distinct ports on which no process listens now. Raises GanglineError `local.no_port`."""
    candidates = lasting_ports()
    free_ports: set[int] = set()
    for _ in range(_TRIES):
        if len(free_ports) == count:
            return list(free_ports)
        port = random.choice(candidates)  # noqa: S311 - a choice among free ports is no secret
        if port not in taken and port not in free_ports and is_free(port):
            free_ports.add(port)
    raise unavailable(
        "local.no_port",
        f"found only {len(free_ports)} of {count} free ports between {candidates.start} and {candidates.stop}",
    )


def lasting_ports() -> range:
    """Returns the ports that the kernel gives to no process that did not ask for them."""
    return range(_FIRST, max(_ephemeral_start(), _FIRST + 1000))


def is_free(port: int) -> bool:
    """Returns whether this account can listen on the port now."""
    return not find_obstacle(port)


def find_obstacle(port: int) -> str:
    """Returns why this account cannot listen on the port now; empty where it can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # The services set the same option, so that connections that ended a moment ago do not keep a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as failure:
            return "in use" if failure.errno == errno.EADDRINUSE else (failure.strerror or str(failure)).lower()
    return ""


def _ephemeral_start() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 32768
