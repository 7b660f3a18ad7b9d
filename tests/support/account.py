"""Runs programs as another account of this machine, and finds the addresses on which processes listen.

Running as another account needs root; tests ask `can_change_account` first.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

import psutil

NOBODY = 65534


def can_change_account() -> bool:
    return os.geteuid() == 0


def run_as_nobody(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """program: Python, of which only the standard library is sure to be readable there."""
    return subprocess.run(
        ["/usr/bin/env", "-i", find_python(), "-I", "-c", program, *arguments],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def find_python() -> str:
    """One outside of a folder of ours, which another account may not enter."""
    return "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable


def listening_addresses(pids: Iterable[int]) -> dict[str, set[str]]:
    """ "host:port" of every TCP socket on which one of these processes listens, by the name of the process."""
    addresses: dict[str, set[str]] = {}
    for pid in pids:
        try:
            process = psutil.Process(pid)
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    own = addresses.setdefault(process.name(), set())
                    own.add(f"{connection.laddr.ip.removeprefix('::ffff:')}:{connection.laddr.port}")
        except psutil.NoSuchProcess:
            continue
    return addresses
