"""A network namespace that one process can be put into, linked to others by cables that can be pulled.

Owns the namespaces and links of one test and removes them; needs root and iproute2 (`can_make_islands`). The names are
short and carry our pid, so that tests beside one another do not meet.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path

_numbers = itertools.count()


def can_make_islands() -> bool:
    return os.geteuid() == 0 and shutil.which("ip") is not None and _can_add()


class Island:
    """host_address reaches it from this machine."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        assert self.number < 30, "no more subnets for islands in one run of the tests"
        self.name = f"gl{os.getpid()}n{self.number}"
        subnet = f"10.{200 + self.number}.{os.getpid() % 250}"
        self.host_address = f"{subnet}.2"
        self._links: list[str] = []
        _ip("netns", "add", self.name)
        _ip("-n", self.name, "link", "set", "lo", "up")
        outside, inside = self._cable(f"{self.name}o", f"{self.name}i")
        _ip("link", "set", inside, "netns", self.name)
        _ip("addr", "add", f"{subnet}.1/24", "dev", outside)
        _ip("link", "set", outside, "up")
        self.set_up(inside, f"{self.host_address}/24")

    def set_up(self, device: str, address: str) -> None:
        _ip("-n", self.name, "addr", "add", address, "dev", device)
        _ip("-n", self.name, "link", "set", device, "up")

    def join(self, other: Island) -> tuple[str, str]:
        """A cable to another island; the two addresses on it, ours first."""
        subnet = f"10.{230 + self.number}.{os.getpid() % 250}"
        ours, theirs = self._cable(f"{self.name}p", f"{other.name}p")
        _ip("link", "set", ours, "netns", self.name)
        _ip("link", "set", theirs, "netns", other.name)
        self.set_up(ours, f"{subnet}.1/24")
        other.set_up(theirs, f"{subnet}.2/24")
        return f"{subnet}.1", f"{subnet}.2"

    def pull_cable(self) -> None:
        """Ends the link made by `join`; what was sent is silently lost."""
        _ip("-n", self.name, "link", "set", f"{self.name}p", "down")

    def program(self, binary: Path, directory: Path) -> Path:
        """A program that runs this one on the island."""
        path = directory / self.name
        path.write_text(f'#!/bin/sh\nexec ip netns exec {self.name} {binary} "$@"\n')
        path.chmod(0o755)
        return path

    def remove(self) -> None:
        for link in self._links:
            _ip("link", "del", link, is_checked=False)
        _ip("netns", "del", self.name, is_checked=False)

    def _cable(self, first: str, other: str) -> tuple[str, str]:
        _ip("link", "add", first, "type", "veth", "peer", "name", other)
        self._links.append(first)
        return first, other


def _can_add() -> bool:
    name = f"gl{os.getpid()}t"
    is_possible = _ip("netns", "add", name, is_checked=False)
    _ip("netns", "del", name, is_checked=False)
    return is_possible


def _ip(*arguments: str, is_checked: bool = True) -> bool:
    finished = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert finished.returncode == 0 or not is_checked, f"ip {' '.join(arguments)}: {finished.stderr}"
    return finished.returncode == 0
