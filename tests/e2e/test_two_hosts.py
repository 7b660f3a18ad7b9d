"""A gang over two hosts with two interfaces each, of which the one that would be tried first leads nowhere.

Agents run in network namespaces, everything else on this machine. Needs root.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.domain.state import ExitKind, Outcome
from tests.support import network
from tests.support.fleet import Fleet
from tests.support.gated_run import ALL_CHECKPOINTS, gated_run, wait_whole
from tests.support.gated_trial import NUM_BATCHES
from tests.support.network import DEAD_INTERFACE, LIVE_INTERFACE, HostNetwork

pytestmark = pytest.mark.timeout(180)

AGENTS = ("agent-1", "agent-2")


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[HostNetwork]]:
    reason = network.why_not()
    if reason:
        pytest.skip(reason)
    with network.two_hosts() as networks:
        # Services are advertised under one address, to which the second host has a way too.
        inside(networks[1], "route", "add", networks[0].server_host, "via", networks[1].server_host)
        yield networks


@pytest.fixture(scope="module")
def fleet(hosts: list[HostNetwork], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("hosts") / "data", host=hosts[0].server_host)
    fleet.set_flag("scheduler", "--max-infrastructure-failures", "1")
    try:
        fleet.start_control_plane()
        for agent, host in zip(AGENTS, hosts, strict=True):
            fleet.set_flag(agent, "--advertise-host", host.server_host.removesuffix("1") + "2")
            fleet.set_flag(agent, "--metrics-listen", "0.0.0.0:0")
            fleet.start(agent, prefix=host.enter)
        wait_whole(fleet, 2)
        yield fleet
    finally:
        fleet.close()


def inside(host: HostNetwork, *words: str) -> None:
    done = subprocess.run([*host.enter, "ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"


def test_gang_trains_over_the_interface_that_is_routable(
    fleet: Fleet, hosts: list[HostNetwork], tmp_path: Path
) -> None:
    with fleet.connect() as client:
        named = [{own.name for own in view.agent.interfaces} for view in client.list_agents()]
    assert all({DEAD_INTERFACE, LIVE_INTERFACE} <= names for names in named)
    with gated_run(fleet, tmp_path) as run:
        view = run.finish()
        trial = view.trials[0].trial
        assert (trial.outcome, trial.attempts) == (Outcome.COMPLETED, 1), trial
        desks = run.wait_at(NUM_BATCHES - 1)
        assert {desk.interface for desk in desks.values()} == {LIVE_INTERFACE}
        assert {desk.agent for desk in desks.values()} == set(AGENTS)
        assert run.checkpoint_batches() == ALL_CHECKPOINTS
        notes = [entry.text for entry in run.client.stream_logs(run.experiment_id) if entry.stream == "runner"]
        dead = rf"agent-1 cannot reach agent-2 at {hosts[1].dead_address} port \d+ over {DEAD_INTERFACE}: .+"
        assert any(re.fullmatch(dead, note) for note in notes), notes
        run.check_records()
        run.check_aftermath()


def test_failure_names_hosts_interface_and_port(fleet: Fleet, hosts: list[HostNetwork], tmp_path: Path) -> None:
    first, second = hosts
    routes = [(first, second.live_address), (second, first.live_address)]
    for host, target in routes:
        inside(host, "route", "add", "unreachable", target)
    try:
        with gated_run(fleet, tmp_path) as run:
            trial = run.finish().trials[0].trial
            assert (trial.outcome, trial.attempts) == (Outcome.FAILED, 1)
            assert trial.last_failure is not None
            assert trial.last_failure.kind is ExitKind.NETWORK
            dead = rf"agent-1 cannot reach agent-2 at {second.dead_address} port \d+ over interface {DEAD_INTERFACE}: "
            live = rf"agent-1 cannot reach agent-2 at {second.live_address} port \d+ over interface {LIVE_INTERFACE}: "
            assert re.search(f"{dead}.+; {live}No route to host", trial.reason), trial.reason
            assert run.gate.desks(run.allocation_id()) == {}
            run.check_aftermath()
    finally:
        for host, target in routes:
            inside(host, "route", "del", "unreachable", target)
