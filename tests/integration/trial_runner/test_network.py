"""Two hosts with two interfaces each, of which one leads nowhere: the other one is found and used."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gangline.domain.allocation import ExitReport
from gangline.domain.state import ExitKind
from services.trial_runner.gang.network_probe import PROBE_SECONDS
from tests.support import network, warm_program
from tests.support.namespace import held_namespaces
from tests.support.network import DEAD_INTERFACE, LIVE_INTERFACE, HostNetwork
from tests.support.runner_peers import GatewayPeer, SchedulerPeer
from tests.support.runner_process import TOKEN, Host, Runner, make_archive, make_spec
from tests.support.warm_program import WarmPair
from tests.support.warm_template import WarmTemplate

SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
print("sum", int(x), os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"], os.environ["MASTER_ADDR"])
"""
# The first host tries the store's port at each of its own addresses.
STORE_SCRIPT = """
import os, psutil, socket, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    listed = [own.address for all in psutil.net_if_addrs().values() for own in all if own.family == socket.AF_INET]
    for address in sorted(listed):
        try:
            socket.create_connection((address, int(os.environ["MASTER_PORT"])), timeout=5)
            print("open", address)
        except ConnectionRefusedError:
            print("refused", address)
dist.barrier()
"""
MEMBERS = [("a1", 1), ("a2", 1)]
Candidate = tuple[str, list[tuple[str, str]]]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[HostNetwork]]:
    reason = network.why_not()
    if reason:
        pytest.skip(reason)
    with network.two_hosts() as made:
        yield made


@pytest.fixture(scope="module")
def templates(hosts: list[HostNetwork]) -> Iterator[list[tuple[WarmTemplate, WarmTemplate]]]:
    pair = WarmPair(warm_program.folder())
    with ExitStack() as stack:
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gl-")))
        made = []
        for index, host in enumerate(hosts):
            place = stack.enter_context(held_namespaces(host.enter))
            runner = WarmTemplate(pair.services(), sockets / f"runner{index}.sock", place=place)
            stack.callback(runner.close)
            rank = WarmTemplate(pair.ranks(), sockets / f"rank{index}.sock", place=place)
            stack.callback(rank.close)
            made.append((runner, rank))
        yield made


def candidates(hosts: list[HostNetwork]) -> tuple[Candidate, Candidate]:
    dead = (_subnet_of(hosts[0].dead_address), [(DEAD_INTERFACE, host.dead_address) for host in hosts])
    live = (_subnet_of(hosts[0].live_address), [(LIVE_INTERFACE, host.live_address) for host in hosts])
    return dead, live


def _subnet_of(address: str) -> str:
    return f"{address.rpartition('.')[0]}.0/24"


async def run_gang(
    hosts: list[HostNetwork],
    templates: list[tuple[WarmTemplate, WarmTemplate]],
    offered: list[Candidate],
    folder: Path,
    script: str = SCRIPT,
) -> tuple[list[ExitReport], SchedulerPeer, GatewayPeer]:
    scheduler = SchedulerPeer(TOKEN, [agent for agent, _ in MEMBERS], offered)
    gateway = GatewayPeer(TOKEN)
    await scheduler.start("0.0.0.0")
    await gateway.start("0.0.0.0")
    sha256, archive = make_archive({"train.py": script})
    gateway.archives[sha256] = archive
    runners: list[Runner] = []
    try:
        for node_rank, (host, (runner, rank)) in enumerate(zip(hosts, templates, strict=True)):
            spec = make_spec(
                MEMBERS,
                node_rank,
                "python3 -m gangline.launch.torch_distributed train.py",
                code_sha256=sha256,
                scheduler=[f"{host.server_host}:{scheduler.port}"],
                gateway=[f"{host.server_host}:{gateway.port}"],
            )
            spec.rendezvous_seconds = 30
            place = Host(MEMBERS[node_rank][0], folder / f"{node_rank}", runner.socket_path, rank.socket_path)
            runners.append(place.start(spec))
        return [await runner.wait() for runner in runners], scheduler, gateway
    finally:
        for each in runners:
            each.kill(9)
        await scheduler.stop()
        await gateway.stop()


async def test_the_network_that_reaches_everybody_is_chosen(
    hosts: list[HostNetwork], templates: list[tuple[WarmTemplate, WarmTemplate]], tmp_path: Path
) -> None:
    reports, scheduler, gateway = await run_gang(hosts, templates, list(candidates(hosts)), tmp_path)
    assert [report.kind for report in reports] == [ExitKind.COMPLETED, ExitKind.COMPLETED], reports
    assert set(scheduler.chosen) == {_subnet_of(hosts[0].live_address)}
    expected = f"sum 2 {LIVE_INTERFACE} {LIVE_INTERFACE} {hosts[0].live_address}"
    assert gateway.lines("stdout") == [expected, expected]
    unreached = f"a1 cannot reach a2 at {hosts[1].dead_address} port "
    assert any(line.startswith(unreached) and DEAD_INTERFACE in line for line in gateway.lines("runner"))


async def test_the_store_listens_on_the_chosen_network_alone(
    hosts: list[HostNetwork], templates: list[tuple[WarmTemplate, WarmTemplate]], tmp_path: Path
) -> None:
    reports, _, gateway = await run_gang(hosts, templates, list(candidates(hosts)), tmp_path, STORE_SCRIPT)
    assert [report.kind for report in reports] == [ExitKind.COMPLETED, ExitKind.COMPLETED], reports
    management = hosts[0].server_host.rpartition(".")[0] + ".2"
    others = sorted(["127.0.0.1", management, hosts[0].dead_address])
    wanted = [*(f"refused {address}" for address in others), f"open {hosts[0].live_address}"]
    assert sorted(gateway.lines("stdout")) == sorted(wanted)


async def test_without_a_working_network_both_hosts_the_interface_and_the_port_are_named(
    hosts: list[HostNetwork], templates: list[tuple[WarmTemplate, WarmTemplate]], tmp_path: Path
) -> None:
    reports, _, _ = await run_gang(hosts, templates, [candidates(hosts)[0]], tmp_path)
    assert [report.kind for report in reports] == [ExitKind.NETWORK, ExitKind.NETWORK]
    for report, own, peer, address in (
        (reports[0], "a1", "a2", hosts[1].dead_address),
        (reports[1], "a2", "a1", hosts[0].dead_address),
    ):
        before, _, reason = report.message.partition(f" over {DEAD_INTERFACE}: ")
        assert before.rpartition(" ")[0] == f"{own} cannot reach {peer} at {address} port"
        assert before.rpartition(" ")[2].isdigit()
        assert reason in {f"no answer within {PROBE_SECONDS:g} s", "No route to host"}
