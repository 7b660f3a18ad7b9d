"""The names of this machine and the interfaces on which others may reach it; the scheduler chooses among them.

Reads psutil and /proc; opens no socket and decides nothing. The agent calls it for each hello.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path

import psutil

from gangline.domain.resource import NetworkInterface


def list_interfaces() -> tuple[NetworkInterface, ...]:
    """Returns every IPv4 address of every interface that is up, loopback included, in the kernel's order."""
    stats = psutil.net_if_stats()
    return tuple(
        NetworkInterface(name, entry.address, _prefix_length(entry.netmask), _speed(stats.get(name)))
        for name, entries in psutil.net_if_addrs().items()
        if name in stats and stats[name].isup
        for entry in entries
        if entry.family == socket.AF_INET
    )


def list_down_interfaces() -> tuple[NetworkInterface, ...]:
    """Returns the interfaces that have an IPv4 address but are down, or have no carrier."""
    stats = psutil.net_if_stats()
    return tuple(
        NetworkInterface(name, entry.address, _prefix_length(entry.netmask))
        for name, entries in psutil.net_if_addrs().items()
        if name in stats and not stats[name].isup
        for entry in entries
        if entry.family == socket.AF_INET
    )


def read_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_host_id() -> str:
    """Returns an id that is the same for all agents with one kernel and one network namespace, which reach each other
    over loopback."""
    return f"{read_boot_id()}/{os.stat('/proc/self/ns/net').st_ino}"  # noqa: PTH116 - Path.stat would say the same, longer


def read_hostname() -> str:
    return socket.gethostname()


def _prefix_length(netmask: str | None) -> int:
    return ipaddress.IPv4Network(f"0.0.0.0/{netmask}").prefixlen if netmask else 32


def _speed(stats: object) -> int:
    # psutil returns 0 if the kernel does not know the speed; some virtual drivers then report 65535 or all bits set.
    speed = int(getattr(stats, "speed", 0))
    return speed if 0 < speed < 1 << 31 and speed != 65535 else 0
