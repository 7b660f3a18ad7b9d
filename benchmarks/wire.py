"""Emulates a slow link between two hosts on one machine: two network namespaces with workload/wire.c between them. Runs
one rank of a training program on each host.

Needs root, a C compiler and /dev/net/tun. The wire runs at a real-time priority, and so should the programs that are
measured over it: on a machine with few cores a short sleep otherwise takes several times as long.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

WORKLOAD = Path(__file__).parent / "workload"
SOURCE = WORKLOAD / "wire.c"
ROOT = Path(__file__).parents[1]
INTERFACE = "wire0"
# Above the priority of the measured programs.
_WIRE_PRIORITY = 10
# Fits a slot of wire.c, which has 9216 bytes.
_MTU = 9000


@dataclass(frozen=True, slots=True)
class Host:
    """Describes one end of a link. command: the words to put before a program that runs there."""

    address: str
    interface: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """Describes a link."""

    name: str
    mbit: int = 0  # 0 for the loopback device of this machine
    round_trip_ms: float = 0.0  # delay of both directions together


def can_emulate() -> bool:
    """Returns whether this process may create links."""
    return os.geteuid() == 0 and Path("/dev/net/tun").exists() and all(map(shutil.which, ("cc", "ip", "chrt")))


@contextmanager
def two_hosts(link: Link) -> Iterator[tuple[Host, Host]]:
    """Creates two hosts at the ends of a link; the end of the context removes everything again."""
    if not link.mbit:
        here = Host("127.0.0.1", "lo", ())
        yield here, here
        return
    spaces = [f"gl-bench-{os.getpid()}-{end}" for end in "ab"]
    with tempfile.TemporaryDirectory(prefix="gl-wire-") as folder:
        program = Path(folder, "wire")
        subprocess.run(["cc", "-O2", "-o", str(program), str(SOURCE)], check=True)
        try:
            for space in spaces:
                _run("ip", "netns", "add", space)
            with _running(program, spaces, link):
                hosts = [_set_up(space, f"10.77.0.{number}") for number, space in enumerate(spaces, start=1)]
                yield hosts[0], hosts[1]
        finally:
            for space in spaces:
                with suppress(subprocess.CalledProcessError):
                    _run("ip", "netns", "delete", space)


@contextmanager
def _running(program: Path, spaces: list[str], link: Link) -> Iterator[None]:
    command = [str(program), *spaces, str(link.mbit), str(round(500 * link.round_trip_ms))]
    with subprocess.Popen(["chrt", "-f", str(_WIRE_PRIORITY), *command], stdout=subprocess.PIPE, text=True) as wire:
        try:
            assert wire.stdout is not None
            if wire.stdout.readline() != "ready\n":
                raise SystemExit("the wire between the two namespaces could not be made; its message is above")
            yield
        finally:
            wire.kill()


def _set_up(space: str, address: str) -> Host:
    inside = ("ip", "netns", "exec", space)
    _run(*inside, "ip", "link", "set", "lo", "up")
    _run(*inside, "ip", "address", "add", f"{address}/24", "dev", INTERFACE)
    _run(*inside, "ip", "link", "set", INTERFACE, "mtu", str(_MTU), "txqueuelen", "5000", "up")
    # A long-lived connection between two hosts of a cluster has found its window; a new one would measure its slow
    # start.
    route = ("ip", "route", "change", "10.77.0.0/24", "dev", INTERFACE, "congctl", "cubic", "initcwnd", "20")
    _run(*inside, *route)
    return Host(address, INTERFACE, inside)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def run_ranks(
    link: Link,
    program: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    prefix: Sequence[str] = (),
) -> str:
    """Runs a program of workload/ on both hosts, one thread each. Returns the last line that rank 0 printed.
    environment: variables beside those of the ranks. prefix: words to put before each rank's command. Ends the
    benchmark with the output of a rank that fails."""
    with two_hosts(link) as hosts:
        port = _free_port()
        ranks = [
            subprocess.Popen(
                [*host.command, *prefix, sys.executable, str(WORKLOAD / program), *arguments],
                env={**_environment(rank, hosts, port, is_one_host=not link.mbit), **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, host in enumerate(hosts)
        ]
        try:
            outputs = [rank.communicate() for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    for rank, (_, errors) in zip(ranks, outputs, strict=True):
        if rank.returncode:
            raise SystemExit(f"{program} {' '.join(arguments)} over {link.name} failed:\n{errors}")
    return outputs[0][0].splitlines()[-1]


def _environment(rank: int, hosts: Sequence[Host], port: int, is_one_host: bool) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": str(rank) if is_one_host else "0",
        "LOCAL_WORLD_SIZE": "2" if is_one_host else "1",
        "MASTER_ADDR": hosts[0].address,
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": hosts[rank].interface,
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
