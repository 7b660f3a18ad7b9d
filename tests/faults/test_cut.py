"""Hosts that are cut off while a trial trains: never two attempts at once, and no end of training without need.

Agents run in network namespaces, the control plane on this machine. Needs root.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gangline.domain.state import AgentState, ExitKind, Outcome
from gangline.local.identity import Identity, identify
from tests.support import network
from tests.support.fleet import Fleet
from tests.support.gated_run import ALL_CHECKPOINTS, GatedRun, gated_run, is_whole, wait_whole
from tests.support.gated_trial import RankDesk, wait_for
from tests.support.network import LIVE_INTERFACE, HostNetwork

AGENTS = ("agent-1", "agent-2")
SLOTS = 2
LEASE_SECONDS = 5.0


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[HostNetwork]]:
    reason = network.why_not()
    if reason:
        pytest.skip(reason)
    with network.two_hosts() as networks:
        inside(networks[1], "route", "add", networks[0].server_host, "via", networks[1].server_host)
        yield networks


@pytest.fixture(scope="module")
def fleet(hosts: list[HostNetwork], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("cut") / "data", slots=SLOTS, host=hosts[0].server_host)
    fleet.set_flag("scheduler", "--agent-lease-seconds", str(LEASE_SECONDS))
    fleet.set_flag("scheduler", "--agent-grace-seconds", "5")
    try:
        fleet.start_control_plane()
        for agent, host in zip(AGENTS, hosts, strict=True):
            fleet.set_flag(agent, "--advertise-host", own_address(host))
            fleet.set_flag(agent, "--metrics-listen", "0.0.0.0:0")
            fleet.start(agent, inside=host.enter)
        wait_whole(fleet, len(AGENTS))
        yield fleet
    finally:
        fleet.close()


def own_address(host: HostNetwork) -> str:
    return host.server_host.rpartition(".")[0] + ".2"


def inside(host: HostNetwork, *words: str) -> None:
    done = subprocess.run([*host.enter, "ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"


@contextmanager
def cut_off(*hosts: HostNetwork) -> Iterator[None]:
    """The hosts' links to the control plane lose every packet."""

    def set_links(state: str) -> None:
        for host in hosts:
            subprocess.run(["ip", "link", "set", f"{host.namespace}m", state], check=True)

    set_links("down")
    try:
        yield
    finally:
        set_links("up")


@contextmanager
def linked(hosts: list[HostNetwork]) -> Iterator[None]:
    """The hosts reach one another's agents without the control plane."""
    first, second = hosts
    routes = [(first, own_address(second), second.live_address), (second, own_address(first), first.live_address)]
    for host, target, via in routes:
        inside(host, "route", "replace", target, "via", via, "dev", LIVE_INTERFACE)
    try:
        yield
    finally:
        for host, target, _ in routes:
            inside(host, "route", "del", target, "dev", LIVE_INTERFACE)


@pytest.fixture
def run(fleet: Fleet, tmp_path: Path) -> Iterator[GatedRun]:
    with gated_run(fleet, tmp_path, slots=SLOTS) as run:
        yield run


def train_to(run: GatedRun, batch: int, attempt: int = 1) -> dict[int, RankDesk]:
    run.gate.allow(batch)
    return run.gate.wait_at(run.allocation_id(attempt), batch, SLOTS)


def processes_of(desks: dict[int, RankDesk]) -> list[Identity]:
    identities = [identify(desk.pid) for desk in desks.values()]
    assert all(identities), "every rank lives"
    return [identity for identity in identities if identity is not None]


def wait_checkpoint(run: GatedRun, batches: int) -> None:
    wait_for(lambda: batches in run.checkpoint_batches(), f"a checkpoint after {batches} batches")


def test_cut_off_host_stops_before_the_next_attempt_begins(
    run: GatedRun, fleet: Fleet, hosts: list[HostNetwork]
) -> None:
    ranks = train_to(run, 6)
    wait_checkpoint(run, 4)
    old = processes_of(ranks)
    agent = ranks[0].agent
    host = hosts[AGENTS.index(agent)]
    stopped_at = started_at = 0.0
    with cut_off(host):
        cut_at = time.monotonic()
        while not started_at:
            assert time.monotonic() - cut_at < 60, "the next attempt did not begin within 60 s"
            # Read in this order: a rank that lives after the next attempt was seen lives beside it.
            has_started = len(run.gate.desks(run.allocation_id(2))) > 0
            is_training = any(rank.is_alive() for rank in old)
            stopped_at = 0.0 if is_training else stopped_at or time.monotonic()
            assert not (has_started and is_training), "two attempts trained at once"
            started_at = time.monotonic() if has_started else 0.0
            time.sleep(0.01)
        assert stopped_at
        print(f"stopped {stopped_at - cut_at:.1f} s, next attempt trained {started_at - cut_at:.1f} s after the cut")
        desks = run.gate.wait_at(run.allocation_id(2), 6, SLOTS)
        assert {desk.agent for desk in desks.values()} == set(AGENTS) - {agent}
        trial = run.trial.trial
        assert trial.last_failure is not None
        assert (trial.last_failure.kind, trial.restarts) == (ExitKind.AGENT_LOST, 0)
    wait_for(lambda: is_whole(run.client), "the agent's return")
    # Its journal has the attempt that ended by itself; nobody counts on it any more.
    wait_for(lambda: not list(fleet.layout.root.glob(f"agents/{agent}/allocations/*")), "the end of the old attempt")
    assert run.finish().trials[0].trial.outcome is Outcome.COMPLETED
    # What the cut off host had recorded before came late, and each of its records once.
    wanted = sorted([*range(1, 7), *range(5, 17)])
    wait_for(lambda: sorted(run.reported_batches()) == wanted, f"metrics once an attempt, not {run.reported_batches()}")
    assert run.checkpoint_batches() == ALL_CHECKPOINTS
    run.check_aftermath()


def test_training_goes_on_where_every_host_has_lost_the_control_plane(
    run: GatedRun, fleet: Fleet, hosts: list[HostNetwork]
) -> None:
    old = processes_of(train_to(run, 3))
    with linked(hosts), cut_off(*hosts):
        # Longer than the runner's lease, the leader's patience with it, and the same once more.
        hold(old, 3 * LEASE_SECONDS)
        train_to(run, 6)
        with fleet.connect() as client:
            assert {view.agent.state for view in client.list_agents()} == {AgentState.LOST}
    wait_for(lambda: is_whole(run.client), "the agents' return")
    check_undisturbed(run, old)


def test_training_goes_on_while_the_scheduler_is_paused(run: GatedRun, fleet: Fleet) -> None:
    old = processes_of(train_to(run, 3))
    fleet.kill("scheduler", signal.SIGSTOP)
    try:
        hold(old, 3 * LEASE_SECONDS)
        train_to(run, 6)
    finally:
        fleet.kill("scheduler", signal.SIGCONT)
    check_undisturbed(run, old)


def test_training_goes_on_while_its_agent_is_paused(run: GatedRun, fleet: Fleet) -> None:
    ranks = train_to(run, 3)
    old, agent = processes_of(ranks), ranks[0].agent
    fleet.kill(agent, signal.SIGSTOP)
    try:
        wait_for(lambda: not is_whole(run.client), "the loss of the agent", 60)
        hold(old, 2 * LEASE_SECONDS)
        train_to(run, 6)
    finally:
        fleet.kill(agent, signal.SIGCONT)
    check_undisturbed(run, old)


def test_kill_reaches_a_trial_whose_agent_is_paused(run: GatedRun, fleet: Fleet) -> None:
    ranks = train_to(run, 3)
    old, agent = processes_of(ranks), ranks[0].agent
    fleet.kill(agent, signal.SIGSTOP)
    try:
        wait_for(lambda: not is_whole(run.client), "the loss of the agent", 60)
        run.client.kill_experiment(run.experiment_id)
        wait_for(lambda: not any(rank.is_alive() for rank in old), "the end of the ranks", 20)
    finally:
        fleet.kill(agent, signal.SIGCONT)
    assert run.client.wait_experiment(run.experiment_id, 60).experiment.outcome is Outcome.CANCELED
    run.check_aftermath()


def test_trial_completes_while_its_agent_is_gone(run: GatedRun, fleet: Fleet, hosts: list[HostNetwork]) -> None:
    ranks = train_to(run, 3)
    agent = ranks[0].agent
    fleet.kill(agent)
    try:
        wait_for(lambda: not is_whole(run.client), "the loss of the agent", 60)
        trial = run.finish().trials[0].trial
        assert (trial.outcome, trial.attempts, trial.last_failure) == (Outcome.COMPLETED, 1, None), trial
    finally:
        fleet.start(agent, inside=hosts[AGENTS.index(agent)].enter)
    assert run.checkpoint_batches() == ALL_CHECKPOINTS
    run.check_aftermath()


def test_trial_completes_while_its_agent_is_paused(run: GatedRun, fleet: Fleet) -> None:
    """The runner cannot tell a paused agent from one that will say the same in a moment; it tells its end itself."""
    ranks = train_to(run, 3)
    agent = ranks[0].agent
    fleet.kill(agent, signal.SIGSTOP)
    try:
        trial = run.finish().trials[0].trial
        assert (trial.outcome, trial.attempts, trial.last_failure) == (Outcome.COMPLETED, 1, None), trial
    finally:
        fleet.kill(agent, signal.SIGCONT)
    assert run.checkpoint_batches() == ALL_CHECKPOINTS
    run.check_aftermath()


def hold(ranks: list[Identity], seconds: float) -> None:
    """Every rank lives for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert all(rank.is_alive() for rank in ranks), "a rank ended"
        time.sleep(0.05)


def check_undisturbed(run: GatedRun, old: list[Identity]) -> None:
    train_to(run, 9)
    assert all(rank.is_alive() for rank in old)
    trial = run.finish().trials[0].trial
    assert (trial.outcome, trial.attempts, trial.last_failure) == (Outcome.COMPLETED, 1, None), trial
    assert run.reported_batches() == list(range(1, 17))
    assert run.checkpoint_batches() == ALL_CHECKPOINTS
    run.check_aftermath()
