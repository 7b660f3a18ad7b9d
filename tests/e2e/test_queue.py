"""Operating a real cluster while work waits: agents are taken out and back, the queue is reordered, and every wait is
explained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gangline.client import Client
from gangline.domain.state import Outcome, ReasonCode, State
from tests.support.cluster import Cluster
from tests.support.gated_trial import NUM_BATCHES, Gate, wait_for


@pytest.fixture(scope="module")
def cluster(two_agents: Cluster) -> Cluster:
    return two_agents


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """Whatever a test leaves behind is killed, so that the next one finds an idle cluster."""
    with cluster.connect() as connected:
        yield connected
        for number in {task.trial.experiment_id for task in connected.list_tasks()}:
            connected.kill_experiment(number)
        wait_for(lambda: not connected.list_tasks(), "an idle cluster", 60)


def submit(client: Client, gate: Gate, slots: int) -> int:
    return client.create_experiment(gate.config(slots=slots), gate.code).experiment.id


def reason_of(client: Client, number: int) -> ReasonCode | None:
    [explained] = client.explain(number).tasks
    return explained.task.reason.code if explained.task.reason is not None else None


def holds_slots(client: Client, number: int) -> bool:
    return any(explained.task.allocation is not None for explained in client.explain(number).tasks)


def queued(client: Client) -> list[int]:
    """The experiments that wait, by their place."""
    waiting = [task for task in client.list_tasks() if task.queue_place]
    return [task.trial.experiment_id for task in sorted(waiting, key=lambda task: task.queue_place)]


def test_gang_waits_for_a_drained_agent_says_so_and_starts_when_it_is_back(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    gate.allow(NUM_BATCHES)
    assert cluster.run("agent", "disable", "agent-2", "--drain").stdout == "agent agent-2: DRAINING\n"
    number = submit(client, gate, slots=4)
    wait_for(lambda: reason_of(client, number) is ReasonCode.AGENTS_DISABLED, "the reason", 60)
    explanation = cluster.run("job", "explain", str(number)).stdout
    assert "AGENTS_DISABLED: needs 4 slots" in explanation
    assert "  blocked by agent-2: agent in pool 'default', DRAINING\n" in explanation
    assert "starts if: " in explanation
    assert "  starts: nobody can tell when\n" in explanation
    row = cluster.run("job", "list").stdout.splitlines()[1].split()
    assert (row[0], row[1], row[-1]) == ("1", f"{number}.1", "AGENTS_DISABLED")
    headers = {"Authorization": f"Bearer {cluster.login.token}"}
    answer = httpx.get(f"{cluster.http_url}/api/v1/jobs/{number}.1/explanation", headers=headers).json()
    assert [blocker["id"] for blocker in answer["tasks"][0]["blockers"]] == ["agent-2"]
    assert cluster.run("agent", "enable", "agent-2").stdout == "agent agent-2: ENABLED\n"
    assert client.wait_experiment(number, 60).experiment.outcome is Outcome.COMPLETED


def test_queue_is_reordered_while_it_waits(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    holder = submit(client, gate, slots=4)
    wait_for(lambda: holds_slots(client, holder), "the first one to hold every slot", 60)
    first, second, third = (submit(client, gate, slots=4) for _ in range(3))
    wait_for(lambda: queued(client) == [first, second, third], "three in the queue", 60)
    assert reason_of(client, first) is ReasonCode.NO_CAPACITY
    explanation = cluster.run("job", "explain", str(first)).stdout
    assert f"  blocked by trial {holder}.1 of experiment {holder} gated, " in explanation
    cluster.run("job", "update", str(third), "--ahead-of", str(first))
    wait_for(lambda: queued(client) == [third, first, second], "the third to be first", 60)
    cluster.run("experiment", "set", "priority", str(second), "1")
    wait_for(lambda: queued(client) == [second, third, first], "the urgent one to be first", 60)
    dump = tmp_path / "dump.json"
    cluster.run("status", "--snapshot", "-o", dump)
    dumped = {task["id"] for task in json.loads(dump.read_text())["tasks"]}
    assert dumped == {f"{holder}.1.1", *(f"{number}.1" for number in (first, second, third))}
    cluster.run("experiment", "kill", str(holder), str(first), str(third))
    wait_for(lambda: holds_slots(client, second), "the urgent one to start", 60)


def test_disabled_slot_gives_its_work_back(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    gate.allow(2)
    gate.pace(0.5)
    number = submit(client, gate, slots=4)
    gate.wait_at(f"{number}.1.1", 2)
    assert cluster.run("slot", "disable", "agent-1/0").stdout == "slot agent-1/0: DISABLED\n"
    gate.allow(NUM_BATCHES)
    wait_for(lambda: reason_of(client, number) is ReasonCode.AGENTS_DISABLED, "its trial to wait again", 60)
    assert "blocked by agent-1: agent in pool 'default', 1 of 2 slots DISABLED" in (
        cluster.run("job", "explain", f"{number}.1").stdout
    )
    gate.pace(0)
    assert cluster.run("slot", "enable", "agent-1/0").stdout == "slot agent-1/0: ENABLED\n"
    trial = client.wait_experiment(number, 90).trials[0].trial
    assert (trial.outcome, trial.attempts, trial.restarts, trial.state) == (Outcome.COMPLETED, 2, 0, State.TERMINAL)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("agent", "disable", "agent-9"), ("'agent-9'", "agent-1", "agent-2")),
        (("slot", "disable", "agent-1/9", "--drain"), ("agent-1/9", "agent-1/0", "agent-1/1")),
        (("job", "update", "999", "--ahead-of", "1"), ("no experiment 999",)),
        (("job", "update", "1", "--priority", "0"), ("priority 0 is out of range; give 1 (most urgent) to 99",)),
        (("status", "--snapshot", "--pool", "nowhere"), ("'nowhere'", "default")),
    ],
)
def test_a_mistake_is_one_line(cluster: Cluster, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = cluster.run(*arguments, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert all(word in line for word in words), line


def test_each_request_has_a_reason_at_once_however_quickly_they_follow_one_another(
    client: Client, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    running = submit(client, gate, slots=4)
    wait_for(lambda: holds_slots(client, running), "the first one to take all slots")
    for _ in range(10):
        assert reason_of(client, submit(client, gate, slots=4)) is not None
