"""Two schedulers on one etcd: the leader dies or is paused while a gang trains, and the standby goes on with all."""

from __future__ import annotations

import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.client import Client, new_request_id
from gangline.domain.state import Outcome
from tests.support.fleet import Fleet
from tests.support.gated_run import ALL_CHECKPOINTS, GatedRun, gated_run, is_whole, wait_whole
from tests.support.gated_trial import NUM_BATCHES, wait_for
from tests.support.state_history import Revision

SCHEDULERS = ("scheduler", "scheduler-2")
# Of the leader, as by default.
LEASE_SECONDS = 5.0
KILL_SECONDS = 2.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("standby") / "data")
    fleet.add_scheduler()
    try:
        fleet.start_control_plane()
        fleet.start("agent-1", "agent-2")
        wait_whole(fleet, 2)
        yield fleet
    finally:
        fleet.close()


def leader_of(fleet: Fleet, run: GatedRun) -> str:
    """Returns the leader's name; empty while there is no leader."""
    return leader_name(fleet, run.client)


def leader_name(fleet: Fleet, client: Client) -> str:
    leader = client.get_cluster().leader
    address = leader.grpc_address if leader else ""
    return next((name for name in SCHEDULERS if fleet.programs[name].addresses["grpc"] == address), "")


def other(name: str) -> str:
    return SCHEDULERS[1 - SCHEDULERS.index(name)]


def leaders(revisions: list[Revision]) -> list[str]:
    """The instances that led, one after another."""
    ids = [revision.leader.id for revision in revisions if revision.leader is not None]
    return [leader_id for number, leader_id in enumerate(ids) if number == 0 or leader_id != ids[number - 1]]


def is_leading(fleet: Fleet, name: str) -> bool:
    """As it says itself."""
    with urllib.request.urlopen(f"http://{fleet.programs[name].addresses['metrics']}/metrics", timeout=10) as page:
        return "\ngangline_scheduler_is_leader 1.0" in page.read().decode()


def test_standby_takes_over_from_a_killed_leader(fleet: Fleet, tmp_path: Path) -> None:
    with gated_run(fleet, tmp_path) as run:
        run.gate.allow(3)
        before = run.wait_at(3)
        leader = leader_of(fleet, run)
        # Waits in the queue, as all slots are taken. Its answer is what an acknowledged request is (I5).
        request_id = new_request_id()
        config = run.client.get_experiment(run.experiment_id).experiment
        waiting = run.client.submit_experiment(config.config_json, config.code_sha256, request_id).experiment
        fleet.kill(leader)
        run.gate.allow(10)
        run.wait_at(10)
        wait_for(lambda: leader_of(fleet, run) == other(leader), "the standby leading")
        again = run.client.submit_experiment(config.config_json, config.code_sha256, request_id).experiment
        assert again.id == waiting.id
        wait_for(lambda: is_whole(run.client), "agents with the new leader")
        run.client.kill_experiment(waiting.id)
        assert run.client.wait_experiment(waiting.id, 30).experiment.outcome is Outcome.CANCELED
        view = run.finish()

        assert {rank: desk.pid for rank, desk in run.wait_at(NUM_BATCHES - 1).items()} == {
            rank: desk.pid for rank, desk in before.items()
        }
        trial = view.trials[0].trial
        assert (trial.outcome, trial.attempts) == (Outcome.COMPLETED, 1)
        assert run.checkpoint_batches() == ALL_CHECKPOINTS
        run.check_records()
        run.num_processes -= 1
        revisions = run.check_aftermath()
        assert len(leaders(revisions)) == 2
    fleet.start(leader)


def test_resumed_old_leader_changes_nothing(fleet: Fleet, tmp_path: Path) -> None:
    with gated_run(fleet, tmp_path) as run:
        run.gate.allow(3)
        before = run.wait_at(3)
        leader = leader_of(fleet, run)
        assert is_leading(fleet, leader)
        fleet.kill(leader, signal.SIGSTOP)
        # The runners report checkpoints to the paused leader; it finds them in its sockets when it goes on.
        run.gate.allow(10)
        run.wait_at(10)
        wait_for(lambda: leader_of(fleet, run) == other(leader), "the standby leading", 60)
        wait_for(lambda: is_whole(run.client), "agents with the new leader")
        run.wait_checkpoint(8)
        resumed_at = run.history.current()
        fleet.kill(leader, signal.SIGCONT)
        wait_for(lambda: not is_leading(fleet, leader), "the old leader standing by")
        view = run.finish()

        assert {rank: desk.pid for rank, desk in run.wait_at(NUM_BATCHES - 1).items()} == {
            rank: desk.pid for rank, desk in before.items()
        }
        trial = view.trials[0].trial
        assert (trial.outcome, trial.attempts) == (Outcome.COMPLETED, 1)
        assert run.checkpoint_batches() == ALL_CHECKPOINTS
        run.check_records()
        revisions = run.check_aftermath()
        assert len(leaders(revisions)) == 2
        assert len(leaders([revision for revision in revisions if revision.number >= resumed_at])) == 1
        assert is_leading(fleet, other(leader))


def num_connected(fleet: Fleet, name: str) -> int:
    """How often an agent has connected to this scheduler, over all its lives."""
    return fleet.layout.log(name).read_text().count('"agent connected"')


def wait_for_agents(fleet: Fleet, name: str, before: int) -> float:
    """Returns when both agents have connected to it since, with the time."""
    wait_for(lambda: num_connected(fleet, name) >= before + 2, f"both agents with {name}", 30)
    return time.monotonic()


def test_agents_are_back_at_once_also_when_the_standby_has_only_just_said_that_it_serves(fleet: Fleet) -> None:
    with fleet.connect() as client:
        for _ in range(4):
            wait_for(lambda: is_whole(client), "a whole cluster")
            leader = leader_name(fleet, client)
            standby = other(leader)
            fleet.kill(standby)
            fleet.start(standby)
            before = num_connected(fleet, standby)
            killed_at = time.monotonic()
            fleet.kill(leader)
            assert wait_for_agents(fleet, standby, before) - killed_at < KILL_SECONDS
            fleet.start(leader)


def test_agents_leave_a_paused_leader_when_its_lease_ends(fleet: Fleet) -> None:
    with fleet.connect() as client:
        wait_for(lambda: is_whole(client), "a whole cluster")
        leader = leader_name(fleet, client)
        standby = other(leader)
        before = num_connected(fleet, standby)
        paused_at = time.monotonic()
        fleet.kill(leader, signal.SIGSTOP)
        took_seconds = wait_for_agents(fleet, standby, before) - paused_at
        fleet.kill(leader, signal.SIGCONT)
        assert took_seconds < LEASE_SECONDS + 1.0
        wait_for(lambda: not is_leading(fleet, leader), "the old leader standing by")


def test_changes_are_made_by_a_scheduler_that_is_started_again_without_a_standby(fleet: Fleet) -> None:
    with fleet.connect() as client:
        wait_for(lambda: is_whole(client), "a whole cluster")
        leader = leader_name(fleet, client)
        standby = other(leader)
        fleet.kill(standby)
        try:
            before = num_connected(fleet, leader)
            fleet.kill(leader)
            fleet.start(leader)
            started_at = time.monotonic()
            assert wait_for_agents(fleet, leader, before) - started_at < KILL_SECONDS
        finally:
            fleet.start(standby)
