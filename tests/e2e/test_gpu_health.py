"""A GPU that fails and recovers, as a user sees it, through all of the real services but the NVIDIA driver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.client import Client
from gangline.domain.state import ReasonCode
from gangline.login import ADDRESS_VARIABLE, TOKEN_VARIABLE
from tests.support.failing_trial import failing_config, failing_source, write_code
from tests.support.fleet import Fleet
from tests.support.gated_trial import wait_for
from tests.support.nvml import StandInNvml, gpu_uuid

SECONDS = 90.0
AGENT = "agent-1"
SLOT = f"{AGENT}/{gpu_uuid(3)}"


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> StandInNvml:
    return StandInNvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def fleet(nvml: StandInNvml, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("gpus") / "data", num_agents=1)
    fleet.set_flag(AGENT, "--slots", "auto")
    fleet.set_flag(AGENT, "--health-seconds", "0.2")
    nvml.break_queries([])
    variables = {name: value for name, value in nvml.environment.items() if os.environ.get(name) != value}
    words = [f"{name}={value}" for name, value in {**variables, "CUDA_VISIBLE_DEVICES": "3,4"}.items()]
    try:
        fleet.start_control_plane()
        fleet.start(AGENT, prefix=["env", *words])
        with fleet.connect() as client:
            wait_for(lambda: client.get_cluster().num_agents == 1, "the agent", SECONDS)
        wait_for(lambda: nvml.watched() == {3, 4}, "both GPUs being watched", SECONDS)
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def client(fleet: Fleet) -> Iterator[Client]:
    with fleet.connect() as connected:
        yield connected


def _slots(client: Client) -> dict[str, Any]:
    (view,) = client.list_agents()
    return {slot.id: slot for slot in view.agent.slots}


def _reason(client: Client, trial_id: str) -> ReasonCode | None:
    (explained,) = client.explain(trial_id).tasks
    return explained.task.reason.code if explained.task.reason else None


def _list_slots(fleet: Fleet) -> str:
    login = {
        ADDRESS_VARIABLE: fleet.programs["gateway"].addresses["grpc"],
        TOKEN_VARIABLE: fleet.layout.read_admin_token(),
    }
    command = [str(Path(sys.executable).with_name("gangline")), "slot", "list"]
    environment = {**os.environ, **login, "COLUMNS": "300"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


def test_failing_gpu_is_listed_with_its_problem_and_starts_nothing(
    fleet: Fleet, client: Client, nvml: StandInNvml, tmp_path: Path
) -> None:
    nvml.break_queries([(3, "memory")])
    nvml.raise_xid(3, 79)
    # A check may come between the two, and then the next one completes the words.
    problem = "XID 79 (it has fallen off the bus), then NVML says of GPU 3: GPU is lost; reset the GPU"
    wait_for(lambda: problem in _slots(client)[SLOT].problem, "the slot being out of use", SECONDS)
    (line,) = [line for line in _list_slots(fleet).splitlines() if line.startswith(SLOT)]
    assert problem in line

    experiment = client.create_experiment(failing_config(slots=2), write_code(tmp_path, failing_source())).experiment
    wait_for(lambda: _reason(client, f"{experiment.id}.1") is ReasonCode.AGENTS_UNHEALTHY, "the reason", SECONDS)
    client.kill_experiment(experiment.id)

    nvml.break_queries([])
    wait_for(lambda: _slots(client)[SLOT].is_healthy, "the slot being back in use", SECONDS)
    (line,) = [line for line in _list_slots(fleet).splitlines() if line.startswith(SLOT)]
    assert "XID" not in line
