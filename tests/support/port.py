"""Ports for services that keep them while they are down, which no other process of the same test run takes then."""

from __future__ import annotations

import os

from gangline.local.port import find_free_ports


def own_ports(count: int) -> list[int]:
    """Distinct free ports. Each worker of a run takes its own share of all ports."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    num_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return find_free_ports(count, {port for port in range(1 << 16) if port % num_workers != number % num_workers})
