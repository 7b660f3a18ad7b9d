"""A gang over two hosts with two interfaces each, of which the one that would be tried first leads nowhere.

Agents run in network namespaces, everything else on this machine. Needs root.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.domain.state import ExitKind, Outcome, ReasonCode
from tests.support import network
from tests.support.fleet import Fleet
from tests.support.gated_run import ALL_CHECKPOINTS, gated_run, wait_whole
from tests.support.gated_trial import NUM_BATCHES, wait_for
from tests.support.network import DEAD_INTERFACE, LIVE_INTERFACE, HostNetwork

AGENTS = ("agent-1", "agent-2")
ONE_SLOT = {
    "name": "alone",
    "entrypoint": "true",
    "searcher": {"name": "single", "metric": "loss"},
    "resources": {"slots_per_trial": 1},
}


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
    fleet = Fleet(tmp_path_factory.mktemp("hosts") / "data", num_agents=3, host=hosts[0].server_host)
    # Two agents that do not reach one another: either may be the cause, and there is no third one.
    fleet.set_flag("scheduler", "--exclusion-seconds", "1")
    try:
        fleet.start_control_plane()
        for agent, host in zip(AGENTS, hosts, strict=True):
            fleet.set_flag(agent, "--advertise-host", host.server_host.removesuffix("1") + "2")
            fleet.set_flag(agent, "--metrics-listen", "0.0.0.0:0")
            fleet.start(agent, inside=host.enter)
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

        def are_known() -> bool:
            named = [{own.name for own in view.agent.interfaces} for view in client.list_agents()]
            return all({DEAD_INTERFACE, LIVE_INTERFACE} <= names for names in named)

        # The kernel may say a second late that a new interface has a carrier; an agent greets again then.
        wait_for(are_known, "the interfaces of both agents")
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
            wait_for(lambda: run.trial.trial.last_failure is not None, "the first failure", 60)
            trial = run.trial.trial
            assert (trial.outcome, trial.restarts) == (None, 0)
            assert trial.last_failure is not None
            assert trial.last_failure.kind is ExitKind.NETWORK
            assert set(trial.last_failure.suspect_agent_ids) == set(AGENTS)
            dead = rf"agent-1 cannot reach agent-2 at {second.dead_address} port \d+ over interface {DEAD_INTERFACE}: "
            live = rf"agent-1 cannot reach agent-2 at {second.live_address} port \d+ over interface {LIVE_INTERFACE}: "
            message = trial.last_failure.message
            assert re.search(f"{dead}.+; {live}No route to host", message), message
            assert run.gate.desks(run.allocation_id()) == {}
            for host, target in routes:
                inside(host, "route", "del", "unreachable", target)
            routes = []
            assert run.finish().trials[0].trial.outcome is Outcome.COMPLETED, "it waited, and went on"
            run.check_aftermath()
    finally:
        for host, target in routes:
            inside(host, "route", "del", "unreachable", target)


def interfaces_of(fleet: Fleet) -> dict[str, set[str]]:
    with fleet.connect() as client:
        return {view.agent.id: {own.name for own in view.agent.interfaces} for view in client.list_agents()}


def test_a_gang_waits_for_a_link_and_one_host_works_on(fleet: Fleet, hosts: list[HostNetwork], tmp_path: Path) -> None:
    second = hosts[1]
    links = (DEAD_INTERFACE, LIVE_INTERFACE)
    try:
        for link in links:
            inside(second, "link", "set", link, "down")
        # The agents hear of it from the kernel: they look by themselves once a minute only.
        wait_for(lambda: not interfaces_of(fleet)["agent-2"].intersection(links), "the report of agent-2", 20)
        # The other end of the cable has no carrier either.
        wait_for(lambda: LIVE_INTERFACE not in interfaces_of(fleet)["agent-1"], "the report of agent-1", 20)
        with gated_run(fleet, tmp_path) as run:
            wait_for(lambda: run.trial.reason is not None, "its reason", 20)
            reason = run.trial.reason
            assert reason is not None
            assert reason.code is ReasonCode.AGENTS_UNHEALTHY
            assert re.search(rf"agent-2 \(its network interface {DEAD_INTERFACE} \(.+\) is down", reason.message), (
                reason
            )
            assert reason.would_start_if.startswith("the network interface for gangs is up on "), reason
            alone = run.client.create_experiment(ONE_SLOT, tmp_path)
            assert run.client.wait_experiment(alone.experiment.id, 60).experiment.outcome is Outcome.COMPLETED
            assert run.trial.trial.attempts == 0
            # The other one leads nowhere, and would be tried while it is the only one that both hosts have reported.
            inside(second, "link", "set", LIVE_INTERFACE, "up")
            trial = run.finish().trials[0].trial
            assert (trial.outcome, trial.attempts) == (Outcome.COMPLETED, 1), trial
            run.check_aftermath()
    finally:
        for link in links:
            inside(second, "link", "set", link, "up")


def test_a_gang_goes_to_the_hosts_that_have_the_named_interface(
    fleet: Fleet, hosts: list[HostNetwork], tmp_path: Path
) -> None:
    first, second = hosts
    address = f"{second.live_address}/24"
    fleet.kill("scheduler")
    fleet.set_flag("scheduler", "--network-interface", LIVE_INTERFACE)
    fleet.start("scheduler")
    fleet.set_flag("agent-3", "--advertise-host", first.server_host.removesuffix("1") + "2")
    fleet.set_flag("agent-3", "--metrics-listen", "0.0.0.0:0")
    fleet.start("agent-3", inside=first.enter)
    wait_whole(fleet, 3)
    inside(second, "addr", "del", address, "dev", LIVE_INTERFACE)
    try:
        wait_for(lambda: LIVE_INTERFACE not in interfaces_of(fleet)["agent-2"], "the report of agent-2", 20)
        with gated_run(fleet, tmp_path) as run:
            trial = run.finish().trials[0].trial
            assert (trial.outcome, trial.attempts) == (Outcome.COMPLETED, 1), trial
            assert {desk.agent for desk in run.wait_at(NUM_BATCHES - 1).values()} == {"agent-1", "agent-3"}
            run.check_aftermath()
    finally:
        inside(second, "addr", "add", address, "dev", LIVE_INTERFACE)
