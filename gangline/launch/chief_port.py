"""Ports on the machine of rank 0 at which the workers of a script's own launcher meet.

Two neighbours: torch.distributed's store takes the first, as MASTER_PORT, and a DistributedContext with chief_ip the
second. The trial runner of node rank 0 finds them. The processes that will listen there start later, so the ports lie
below those that the kernel gives to outgoing connections.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

from gangline.errors import unavailable

_LOWEST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 100


def find_ports(address: str) -> int:
    """Returns the first of two neighbouring free ports. Raises GanglineError `runner.no_port`.

    address: of this machine, in the network of the gang.
    """
    end = max(_LOWEST + 2, _first_of_kernel() - 1)
    for _ in range(_TRIES):
        port = random.randrange(_LOWEST, end)  # noqa: S311  a port is no secret
        if _is_free(address, port) and _is_free(address, port + 1):
            return port
    raise unavailable("runner.no_port", f"found no two free ports from {_LOWEST} to {end} at {address}")


def _first_of_kernel() -> int:
    """Returns the lowest port that the kernel gives to outgoing connections."""
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError):
        return 32_768


def _is_free(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        try:
            # torch listens at every address of the machine.
            listener.bind(("", port))
        except OSError:
            return False
    return True
