"""An agent whose state directory is full: whose fault that is, who starts where, and how it comes back.

Real processes; the first agent's state directory is a small tmpfs in a mount namespace of its own. Needs root.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gangline.client import Client
from gangline.domain.resource import Agent
from gangline.domain.state import AgentState, ExitKind, Outcome, State
from gangline.domain.view import ExperimentView, TrialView
from tests.support.fleet import Fleet
from tests.support.gated_trial import wait_for

SICK, WELL = "agent-1", "agent-2"
# Says that it is up, waits for the test, and does `then` in its first attempt.
SCRIPT = """
import os, time, gangline
from pathlib import Path
here = Path({folder!r})
attempt = gangline.get_cluster_info().attempt
(here / f"up.{{attempt}}").write_text("")
while not (here / f"go.{{attempt}}").exists():
    time.sleep(0.02)
if attempt == 1:
    {then}
"""
WRITE = "open('result', 'wb').write(b'x' * 300_000)"
WRITE_ELSEWHERE = "Path('/dev/full').write_text('x')"


@dataclass
class SmallDisk:
    """The state directory of the first agent. holder: the process that keeps its mount namespace."""

    state: Path
    holder: subprocess.Popen[bytes]

    @property
    def folder(self) -> Path:
        """As it is seen from outside of the namespace."""
        return Path(f"/proc/{self.holder.pid}/root{self.state}")

    @property
    def enter(self) -> list[str]:
        """The command prefix that runs in the namespace."""
        return ["nsenter", "-t", str(self.holder.pid), "-m"]

    def fill(self) -> None:
        """Until nothing is free. The file of an agent's check takes space, and gives it back when the check is over."""
        with (self.folder / "fill").open("ab", buffering=0) as file:
            while True:
                for size in (4096, 1):
                    with suppress(OSError):
                        while file.write(b"x" * size):
                            pass
                if not list(self.folder.glob(".check.*")) and not os.statvfs(self.folder).f_bavail:
                    return

    def free(self) -> None:
        (self.folder / "fill").unlink()


@pytest.fixture
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces need root")
    state = tmp_path_factory.mktemp("sick") / "data" / "agents" / SICK
    state.mkdir(parents=True)
    mount = f'mount -t tmpfs -o size=1m,mode=0700 small "{state}" && exec sleep infinity'
    disk = SmallDisk(state, subprocess.Popen(["unshare", "-m", "sh", "-c", mount]))
    try:
        wait_for(lambda: "small" in Path(f"/proc/{disk.holder.pid}/mounts").read_text(), "the small disk")
        yield disk
    finally:
        disk.holder.kill()
        disk.holder.wait(10)


@pytest.fixture
def fleet(disk: SmallDisk) -> Iterator[Fleet]:
    fleet = Fleet(disk.state.parents[1], slots=1)
    try:
        for agent in (SICK, WELL):
            fleet.set_flag(agent, "--health-seconds", "1")
        fleet.start_control_plane()
        fleet.start(SICK, inside=disk.enter)
        fleet.start(WELL)
        with fleet.connect() as client:
            wait_for(lambda: client.get_cluster().num_agents == 2, "both agents")
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def client(fleet: Fleet) -> Iterator[Client]:
    with fleet.connect() as connected:
        yield connected


def submit(client: Client, folder: Path, then: str = "pass", **config: Any) -> int:
    code = folder / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text(SCRIPT.format(folder=str(folder), then=then))
    document = {
        "name": "sick",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
        "max_restarts": 0,
        **config,
    }
    return client.create_experiment(json.dumps(document), code).experiment.id


def wait_up(folder: Path, attempt: int = 1) -> None:
    wait_for((folder / f"up.{attempt}").exists, f"attempt {attempt}", 60)


def go(folder: Path, attempt: int = 1) -> None:
    (folder / f"go.{attempt}").touch()


def place_of(client: Client, experiment_id: int) -> list[str]:
    allocation = trial_of(client, experiment_id).allocation
    return [member.agent_id for member in allocation.members] if allocation else []


def trial_of(client: Client, experiment_id: int) -> TrialView:
    return client.get_experiment(experiment_id).trials[0]


def agent_of(client: Client, agent_id: str) -> Agent:
    return next(view.agent for view in client.list_agents() if view.agent.id == agent_id)


def wait_problem(client: Client, is_there: bool) -> None:
    wait_for(lambda: bool(agent_of(client, SICK).problem) is is_there, f"a problem: {is_there}", 60)


def fill_for_good(client: Client, disk: SmallDisk) -> None:
    """Fills what the agent frees, too: its check removes cached code from a full disk before it says so."""

    def is_noticed() -> bool:
        disk.fill()
        return bool(agent_of(client, SICK).problem)

    wait_for(is_noticed, "a problem of the full disk", 60)
    disk.fill()


def end(client: Client, experiment_id: int) -> ExperimentView:
    return client.wait_experiment(experiment_id, 90)


def start_on_sick(client: Client, folder: Path, then: str = "pass", **config: Any) -> int:
    """A trial that runs on the first agent; then the other is there as well."""
    client.disable_agent(WELL)
    experiment_id = submit(client, folder, then, **config)
    wait_up(folder)
    assert place_of(client, experiment_id) == [SICK]
    client.enable_agent(WELL)
    return experiment_id


def test_a_disk_that_fills_while_a_trial_runs_sends_it_to_another_agent(
    client: Client, disk: SmallDisk, tmp_path: Path
) -> None:
    experiment_id = start_on_sick(client, tmp_path, WRITE)
    disk.fill()
    go(tmp_path)
    wait_up(tmp_path, 2)
    assert place_of(client, experiment_id) == [WELL]
    trial = trial_of(client, experiment_id).trial
    assert (trial.restarts, trial.infrastructure_failures) == (0, 1)
    assert trial.last_failure is not None
    assert (trial.last_failure.kind, trial.last_failure.agent_id) == (ExitKind.AGENT_DISK, SICK)
    assert "No space left on device" in trial.last_failure.message
    assert f"state directory {disk.state}" in trial.last_failure.message
    assert [exclusion.agent_id for exclusion in trial.exclusions] == [SICK]
    go(tmp_path, 2)
    assert end(client, experiment_id).experiment.outcome is Outcome.COMPLETED


def test_another_disk_that_is_full_is_the_trials_own_fault(client: Client, tmp_path: Path) -> None:
    experiment_id = start_on_sick(client, tmp_path, WRITE_ELSEWHERE)
    go(tmp_path)
    trial = end(client, experiment_id).trials[0].trial
    assert (trial.outcome, trial.attempts) == (Outcome.FAILED, 1)
    assert trial.last_failure is not None
    assert trial.last_failure.kind is ExitKind.USER_ERROR
    assert not trial.exclusions


def test_a_trial_that_completes_on_a_full_disk_has_completed(client: Client, disk: SmallDisk, tmp_path: Path) -> None:
    experiment_id = start_on_sick(client, tmp_path)
    fill_for_good(client, disk)
    go(tmp_path)
    view = end(client, experiment_id)
    assert (view.experiment.outcome, view.trials[0].trial.attempts) == (Outcome.COMPLETED, 1)
    assert not list(disk.folder.glob("*/*/exit.json"))


def test_an_agent_with_a_full_disk_gets_nothing_and_comes_back_by_itself(
    fleet: Fleet, client: Client, disk: SmallDisk, tmp_path: Path
) -> None:
    disk.fill()
    wait_problem(client, True)
    assert agent_of(client, SICK).problem == (
        f"its state directory {disk.state} takes no writes (No space left on device); free space there"
    )
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    running = submit(client, first)
    wait_up(first)
    assert place_of(client, running) == [WELL]
    waiting = submit(client, second)

    # An agent that starts on a full disk says so, too.
    fleet.kill(SICK, signal.SIGTERM)
    assert fleet.processes[SICK].wait(20) == 0
    fleet.start(SICK, inside=disk.enter)
    wait_for(lambda: fleet.log(SICK).count("a leader welcomed this agent") == 2, "the second welcome")
    agent = agent_of(client, SICK)
    assert (agent.state, fleet.processes[SICK].poll()) == (AgentState.ALIVE, None)
    assert "takes no writes" in agent.problem
    assert trial_of(client, waiting).trial.state is State.QUEUED
    disk.free()
    wait_up(second)
    assert place_of(client, waiting) == [SICK]
    assert not agent_of(client, SICK).problem
    for folder in (first, second):
        go(folder)
    for experiment_id in (running, waiting):
        assert end(client, experiment_id).experiment.outcome is Outcome.COMPLETED


def test_a_start_on_a_full_disk_goes_elsewhere_and_says_why(
    fleet: Fleet, client: Client, disk: SmallDisk, tmp_path: Path
) -> None:
    """The agent's own check is too rare to find it first."""
    fleet.kill(SICK, signal.SIGTERM)
    fleet.processes[SICK].wait(20)
    fleet.set_flag(SICK, "--health-seconds", "3600")
    fleet.start(SICK, inside=disk.enter)
    client.disable_agent(WELL)
    disk.fill()
    experiment_id = submit(client, tmp_path)
    wait_for(lambda: bool(trial_of(client, experiment_id).trial.exclusions), "the exclusion", 60)
    trial = trial_of(client, experiment_id).trial
    assert (trial.state, trial.attempts, trial.restarts) == (State.QUEUED, 1, 0)
    assert trial.last_failure is not None
    assert trial.last_failure.kind is ExitKind.AGENT_DISK, trial.last_failure
    # What could not be written makes the agent look.
    wait_problem(client, True)
    client.enable_agent(WELL)
    wait_up(tmp_path, 2)
    go(tmp_path, 2)
    assert end(client, experiment_id).experiment.outcome is Outcome.COMPLETED
