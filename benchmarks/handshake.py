"""Measures what TLS adds to opening a connection: from the open to the first answer, beside plain text in the same run.

| row | how both ends prove themselves |
|---|---|
| service | as an agent at a scheduler: both by certificate |
| client | as a CLI at a gateway: the server by certificate |
| gang link | as a trial runner at that of node rank 0: both by certificate, after their greeting |

The servers are those of the services, in a process of their own. Every pair opens a connection in plain text and one by
TLS, in turns. The target is at most 10 ms more at the median. Run it with `python -m benchmarks.handshake`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc.aio

from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from benchmarks.run_folder import make_run_folder
from benchmarks.statistic import summarise
from gangline.certificate.folder import CertificateFolder
from gangline.domain.peer_name import AGENT, GATEWAY, ROLES, SCHEDULER
from gangline.protocol.dialer import PLAIN, Dialer, TlsFiles, dialer_of
from gangline.protocol.rpc import CHANNEL_OPTIONS, token_metadata
from gangline.v1 import agent_pb2, agent_pb2_grpc
from services.common.server import Principal, ServerTls, serve
from services.common.telemetry import configure_logging
from services.common.tls.identity import TlsIdentity
from services.trial_runner.gang import member_link
from services.trial_runner.gang.link_tls import LinkTls
from services.trial_runner.gang.member_link import MemberServer, Wire

CLUSTER, AGENTS, TOKEN = "bench", ("a1", "a2"), "token"
LOOPBACK = "127.0.0.1"
TARGET_SECONDS = 0.010
# Else channels to one address share a connection.
_OPTIONS = [*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
Open = Callable[[], Awaitable[None]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    # Logs go to stderr; stdout has the figures, and the server's addresses.
    configure_logging("handshake", "text", "error")
    if arguments.serve is not None:
        asyncio.run(_serve(arguments.serve))
        return 0
    print(describe_machine())
    folder = make_run_folder("gl-handshake-")
    _make_certificates(folder)
    command = [sys.executable, "-m", "benchmarks.handshake", "--serve", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        with closing(server.stdin):
            return asyncio.run(_measure(folder, json.loads(server.stdout.readline()), arguments.pairs))


async def _measure(folder: Path, addresses: dict[str, str], pairs: int) -> int:
    """Returns the exit status: 1 if a target is missed."""
    service = dialer_of(_files(folder, f"{AGENT}-a2"), f"{SCHEDULER}.{CLUSTER}")
    client = dialer_of(TlsFiles(str(folder / "ca.crt")), f"{GATEWAY}.{CLUSTER}")
    tls = LinkTls(_files(folder, f"{AGENT}-a2"), CLUSTER, AGENTS)
    plain = _opener(PLAIN, addresses["plain"])
    status = 0
    print("milliseconds from open to first answer: median and p95 of plain text, of TLS, and what TLS adds")
    for name, in_plain, by_tls in (
        ("service", plain, _opener(service, addresses["service"])),
        ("client", plain, _opener(client, addresses["client"])),
        ("gang link", _linker(None, addresses["plain_link"]), _linker(tls, addresses["link"])),
    ):
        # Not counted: the first ones also load code.
        await _pair(in_plain, by_tls)
        samples = [await _pair(in_plain, by_tls) for _ in range(pairs)]
        before, after = (summarise(column) for column in zip(*samples, strict=True))
        added = summarise([secure - bare for bare, secure in samples])
        status |= added.p50 > TARGET_SECONDS
        columns = [f"{1000 * value:8.2f}" for each in (before, after, added) for value in (each.p50, each.p95)]
        print(f"{name:10} {' '.join(columns)}  {'MISSED' if added.p50 > TARGET_SECONDS else 'ok'}")
    print(f"target: at most {1000 * TARGET_SECONDS:g} ms more at the median, over {pairs} pairs")
    return status


async def _pair(*opens: Open) -> tuple[float, ...]:
    """Returns the seconds of each."""
    taken = []
    for each in opens:
        began_at = time.perf_counter()
        await each()
        taken.append(time.perf_counter() - began_at)
    return tuple(taken)


def _opener(dialer: Dialer, address: str) -> Open:
    async def call() -> None:
        async with dialer.open_async(address, _OPTIONS) as channel:
            stub: Any = agent_pb2_grpc.AgentServiceStub(channel)
            await stub.FindLeader(agent_pb2.FindLeaderRequest(), metadata=token_metadata(TOKEN), timeout=10)

    return call


def _linker(tls: LinkTls | None, address: str) -> Open:
    async def link() -> None:
        host, _, port = address.rpartition(":")
        async with asyncio.timeout(10):
            wire = await member_link.connect(
                TOKEN, "link", 1, 0, address=(host, int(port)), own_address=LOOPBACK, tls=tls
            )
        wire.close()

    return link


class _Agents(agent_pb2_grpc.AgentServiceServicer):
    async def FindLeader(  # noqa: N802 - grpc's name
        self, _request: agent_pb2.FindLeaderRequest, _context: Any
    ) -> agent_pb2.FindLeaderResponse:
        return agent_pb2.FindLeaderResponse()


async def _serve(folder: Path) -> None:
    """Serves until its standard input ends. Prints the addresses as one line of JSON."""

    def add(server: grpc.aio.Server) -> None:
        agent_pb2_grpc.add_AgentServiceServicer_to_server(_Agents(), server)  # type: ignore[abstract] # one call is enough

    async def admit(_method: str, _token: str | None) -> Principal:
        return Principal("cluster", "")

    async def on_link(_peer: int, wire: Wire) -> None:
        await wire.receive()

    identities = {role: TlsIdentity(_files(folder, role), role) for role in (SCHEDULER, GATEWAY)}
    servers = {
        "plain": await serve(f"{LOOPBACK}:0", add, admit),
        "service": await serve(f"{LOOPBACK}:0", add, admit, ServerTls(identities[SCHEDULER], True)),
        "client": await serve(f"{LOOPBACK}:0", add, admit, ServerTls(identities[GATEWAY])),
    }
    addresses = {name: server.address for name, server in servers.items()}
    head = LinkTls(_files(folder, f"{AGENT}-a1"), CLUSTER, AGENTS)
    members = {"plain_link": MemberServer(TOKEN, 0, on_link), "link": MemberServer(TOKEN, 0, on_link, head)}
    for name, member in members.items():
        addresses[name] = f"{LOOPBACK}:{await member.start()}"
    print(json.dumps(addresses), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for member in members.values():
        member.close()
    for server in servers.values():
        await server.stop(0)


def _make_certificates(path: Path) -> None:
    folder, now = CertificateFolder(path), datetime.now(UTC)
    folder.init(CLUSTER, now, 100)
    for role in ROLES:
        for agent_id in AGENTS if role == AGENT else ("",):
            folder.issue(folder.name_of(role, agent_id), (LOOPBACK,), now, 90)


def _files(folder: Path, stem: str) -> TlsFiles:
    return TlsFiles(*(str(folder / name) for name in ("ca.crt", f"{stem}.crt", f"{stem}.key")))


if __name__ == "__main__":
    run_benchmark(main)
