"""Real etcd servers for tests: one member that can be killed and started again, and clusters of three.

Owns starting, pausing and killing them by pid; ports are free ones, data lies in the test's own directory. Used through
the fixtures in tests/integration/conftest.py, or directly by tests that break what they run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gangline.local.etcd import (
    EtcdProcess,
    launch_etcd,
    start_etcd,
    wait_for_address,
)
from gangline.local.etcd_program import find_etcd_binary, read_etcd_version
from services.common.etcd import EtcdSettings
from tests.support.port import own_ports


class EtcdServer:
    """One member. It may be killed, started again on the same port and data, paused and resumed."""

    def __init__(self, directory: Path, binary: Path | None = None, arguments: Sequence[str] = ()) -> None:
        self.directory = directory
        self._binary = binary or find_etcd_binary()
        self._arguments = arguments
        self._process = self._launch(0)
        self.address = self._process.address

    @property
    def settings(self) -> EtcdSettings:
        return EtcdSettings(endpoints=(self.address,))

    def kill(self) -> None:
        self._process.kill()

    def restart(self) -> None:
        self._process = self._launch(int(self.address.rpartition(":")[2]))

    def pause(self) -> None:
        """Returns when every thread has stopped: one that still runs could answer."""
        os.kill(self._process.pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self._process.pid}/task")
        deadline = time.monotonic() + 10
        while not all(_is_stopped(task) for task in tasks.iterdir()):
            assert time.monotonic() < deadline, "etcd did not stop within 10 s"
            time.sleep(0.001)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        self._process.process.send_signal(signal.SIGCONT)
        self._process.kill()

    def _launch(self, port: int) -> EtcdProcess:
        if not self._arguments:
            return start_etcd(self._binary, self.directory, is_durable=False, client_port=port, is_tied=True)
        scheme = "https" if "--cert-file" in self._arguments else "http"
        client = f"{scheme}://127.0.0.1:{port}"
        peer = "http://127.0.0.1:0"
        arguments = [
            *("--name", "gangline", "--initial-cluster", f"gangline={peer}"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--heartbeat-interval", "20", "--election-timeout", "200"),
            *self._arguments,
        ]
        return launch_etcd(self._binary, arguments, self.directory, is_tied=True)


@dataclass
class Member:
    name: str
    process: subprocess.Popen[bytes]
    address: str = ""


@dataclass
class EtcdCluster:
    """Three members. `members` in the order of `settings.endpoints`."""

    directory: Path
    binary: Path = field(default_factory=find_etcd_binary)
    members: list[Member] = field(default_factory=list)

    def start(self) -> EtcdCluster:
        # Of a range from which the kernel gives none to other processes meanwhile.
        ports = own_ports(3)
        peers = [f"http://127.0.0.1:{port}" for port in ports]
        initial = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
        for number, peer in enumerate(peers):
            client = "http://127.0.0.1:0"
            arguments = [
                *("--name", f"m{number}", "--initial-cluster", initial),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            ]
            launched = launch_etcd(self.binary, arguments, self.directory / f"m{number}", is_tied=True, is_alone=False)
            self.members.append(Member(f"m{number}", launched.process))
        for member in self.members:
            member.address = wait_for_address(member.process, self.directory / member.name / "etcd.log")
        return self

    @property
    def settings(self) -> EtcdSettings:
        """Allows the version that a machine without Debian's etcd has: these members are never killed under load."""
        endpoints = tuple(member.address for member in self.members)
        return EtcdSettings(endpoints=endpoints, allow_unsafe_version=read_etcd_version(self.binary) < (3, 5, 3))

    def stop(self) -> None:
        for member in self.members:
            member.process.send_signal(signal.SIGCONT)
            member.process.kill()
        for member in self.members:
            member.process.wait()


def _is_stopped(task: Path) -> bool:
    """Returns whether a thread is stopped, or has just ended."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return True
