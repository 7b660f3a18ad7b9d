"""Two hosts on one machine: network namespaces with two data interfaces each, of which one leads nowhere.

Each also has a management interface to the machine itself, where a test's servers listen. Needs root.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

_numbers = itertools.count()
DEAD_INTERFACE = "fast0"
LIVE_INTERFACE = "slow0"


@dataclass(frozen=True)
class HostNetwork:
    """server_host: under which this host reaches the test's servers. enter: the command prefix that runs in it."""

    namespace: str
    server_host: str
    dead_address: str
    live_address: str

    @property
    def enter(self) -> list[str]:
        return ["ip", "netns", "exec", self.namespace]


def why_not() -> str:
    """Why namespaces cannot be made here; empty when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"gl{os.getpid()}t"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces are not to be had here: {made.stderr.strip()}"
    _run("ip", "netns", "del", name)
    return ""


@contextmanager
def two_hosts() -> Iterator[list[HostNetwork]]:
    """The namespaces and their interfaces; all gone afterwards."""
    _remove_left()
    # The kernel removes the interfaces of a namespace some time after it is gone.
    stem = f"gl{os.getpid()}n{next(_numbers)}"
    servers = _free_subnet()
    data = servers + 1
    hosts = [
        HostNetwork(f"{stem}{letter}", f"10.{servers}.{index}.1", f"10.{data}.1.{index}", f"10.{data}.2.{index}")
        for index, letter in ((1, "a"), (2, "b"))
    ]
    try:
        for host in hosts:
            _run("ip", "netns", "add", host.namespace)
            _in(host, "ip", "link", "set", "lo", "up")
            _add_management(host)
            _add_dead(host)
        _add_live(hosts)
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.namespace], check=False, capture_output=True)


def _remove_left() -> None:
    """Removes the namespaces of test processes that were killed. Their addresses would take the packets of ours."""
    for line in _run("ip", "netns", "list").splitlines():
        made = re.match(r"gl(\d+)[nt]", line)
        if made and not psutil.pid_exists(int(made[1])):
            subprocess.run(["ip", "netns", "del", line.split()[0]], check=False, capture_output=True)


def _free_subnet() -> int:
    """The second byte of addresses that this machine does not have. The workers of pytest-xdist, which run beside one
    another, look at different ones."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    addresses = _run("ip", "-4", "-o", "addr")
    return next(byte for byte in range(77 + 2 * worker, 250, 16) if f" 10.{byte}." not in addresses)


def _add_management(host: HostNetwork) -> None:
    outer = f"{host.namespace}m"
    _run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
    _run("ip", "addr", "add", f"{host.server_host}/24", "dev", outer)
    _run("ip", "link", "set", outer, "up")
    _address(host, "eth0", host.server_host.rpartition(".")[0] + ".2")


def _add_dead(host: HostNetwork) -> None:
    """Up, with an address and a carrier, but no other host at its far end."""
    outer = f"{host.namespace}d"
    _run("ip", "link", "add", outer, "type", "veth", "peer", "name", DEAD_INTERFACE, "netns", host.namespace)
    _run("ip", "link", "set", outer, "up")
    _address(host, DEAD_INTERFACE, host.dead_address)


def _add_live(hosts: Sequence[HostNetwork]) -> None:
    first, second = hosts
    link = ["ip", "link", "add", LIVE_INTERFACE, "netns", first.namespace, "type", "veth"]
    _run(*link, "peer", "name", LIVE_INTERFACE, "netns", second.namespace)
    for host in hosts:
        _address(host, LIVE_INTERFACE, host.live_address)


def _address(host: HostNetwork, interface: str, address: str) -> None:
    _in(host, "ip", "addr", "add", f"{address}/24", "dev", interface)
    _in(host, "ip", "link", "set", interface, "up")


def _in(host: HostNetwork, *command: str) -> None:
    _run(*host.enter, *command)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout
