"""The commands for queues, agents and slots: their text, JSON and exit status, and one line for each mistake."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from gangline.cli.main import run
from gangline.errors import ErrorKind, GanglineError
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import types_pb2
from tests.integration.cli.conftest import Cli
from tests.support.stand_in_gateway import StandInGateway
from tests.support.view import make_agent_view, make_allocation, make_experiment, make_trial


@pytest.fixture
def queue(gateway: StandInGateway) -> StandInGateway:
    """Experiment 1 runs on a1, experiment 2 waits for it."""
    reason = types_pb2.Reason(
        code=types_pb2.REASON_CODE_NO_CAPACITY,
        message="needs 2 slots; 0 of 2 are free in pool 'default'",
        would_start_if="these end: 1.1.1",
        blocking_ids=["1.1.1"],
        eta_at=time.time() + 600,
        changes_json='[{"kind": "end_work", "allocation_ids": ["1.1.1"]}]',
    )
    allocation = make_allocation(("a1", 2))
    allocation.pool = "default"
    request = types_pb2.Request(
        trial_id="2.1", experiment_id=2, pool="default", slots=2, priority=50, submitted_at=time.time() - 300
    )
    waiting = make_trial("QUEUED", id="2.1", experiment_id=2)
    gateway.experiments = {1: make_experiment(), 2: make_experiment("QUEUED", id=2, name="big")}
    gateway.views[2] = [pb.ExperimentView(experiment=gateway.experiments[2], trials=[pb.TrialView(trial=waiting)])]
    gateway.tasks = [
        pb.Task(trial=make_trial(), experiment_name="digits", allocation=allocation, weight=1),
        pb.Task(
            trial=waiting, experiment_name="big", request=request, reason=reason, queue_place=1, priority=50, weight=1
        ),
    ]
    gateway.agents = [make_agent_view()]
    return gateway


def test_job_list_shows_each_queue_in_its_order(cli: Cli, queue: StandInGateway) -> None:
    headings, running, waiting = cli("job", "list").out.splitlines()
    assert headings.startswith("PLACE  TRIAL  EXPERIMENT  POOL")
    assert running.split()[:7] == ["-", "1.1", "digits", "default", "-", "2", "RUNNING"]
    assert running.endswith("a1 (2)")
    assert re.split(r"\s{2,}", waiting) == [
        "1", "2.1", "big", "default", "50", "2", "QUEUED", "5 min", "in 10 min", "NO_CAPACITY",
    ]  # fmt: skip
    document = json.loads(cli("j", "ls", "--json").out)
    assert document[1]["reason"]["changes"] == [{"kind": "end_work", "allocation_ids": ["1.1.1"]}]
    assert document[1]["queue_place"] == 1
    ran = cli("job", "list", "--pool", "other")
    assert (ran.status, ran.out, ran.err) == (2, "", "error: there is no pool 'other'\n")


@pytest.mark.parametrize("job_id", ["2", "2.1"])
def test_job_explain_tells_all(cli: Cli, queue: StandInGateway, job_id: str) -> None:
    lines = cli("job", "explain", job_id).out.splitlines()
    assert lines[:-1] == [
        "experiment 2 big: QUEUED",
        "trial 2.1: QUEUED, place 1 of the queue, needs 2 slots, pool 'default', priority 50",
        "  NO_CAPACITY: needs 2 slots; 0 of 2 are free in pool 'default'",
        "  blocked by trial 1.1 of experiment 1 digits, RUNNING on a1 (2 slots)",
        "  starts if: these end: 1.1.1",
    ]
    assert re.fullmatch(r"  starts: (\d{4}-\d\d-\d\d )?\d\d:\d\d(:\d\d)? \(in 10 min\)", lines[-1])
    document = json.loads(cli("job", "explain", job_id, "--json").out)
    assert document["tasks"][0]["blockers"][0]["kind"] == "allocation"
    assert document["tasks"][0]["task"]["reason"]["code"] == "NO_CAPACITY"


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        (("job", "update", "2", "--priority", "10"), types_pb2.ResourceChange(priority=10)),
        (("job", "update", "2", "-w", "2", "--max-slots", "0"), types_pb2.ResourceChange(weight=2, max_slots=0)),
        (("experiment", "set", "priority", "2", "10"), types_pb2.ResourceChange(priority=10)),
        (("experiment", "set", "weight", "2", "0.5"), types_pb2.ResourceChange(weight=0.5)),
        (("e", "set", "max-slots", "2", "8"), types_pb2.ResourceChange(max_slots=8)),
        (
            ("e", "set", "max-slots", "2", "8", "--when-free"),
            types_pb2.ResourceChange(max_slots=8, when_free=True),
        ),
        (
            ("job", "update", "2", "--max-slots", "8", "--when-free"),
            types_pb2.ResourceChange(max_slots=8, when_free=True),
        ),
        (("job", "update", "2", "--ahead-of", "1"), types_pb2.QueueMove(anchor_experiment_id=1)),
        (("job", "update", "2", "--behind-of", "1"), types_pb2.QueueMove(anchor_experiment_id=1, is_behind=True)),
    ],
)
def test_what_is_changed_is_sent(
    cli: Cli, queue: StandInGateway, arguments: tuple[str, ...], change: types_pb2.ResourceChange | types_pb2.QueueMove
) -> None:
    ran = cli(*arguments)
    assert (ran.status, ran.err) == (0, "")
    [sent] = queue.updates
    assert change in (sent.resources, sent.move)
    assert sent.experiment_id == 2


def test_a_change_prints_the_resources_as_they_are(cli: Cli, queue: StandInGateway) -> None:
    ran = cli("job", "update", "2", "--priority", "10", "--max-slots", "4")
    assert ran.out == "experiment 2 big: priority 10, weight 1, max_slots 4\n"
    ran = cli("experiment", "set", "weight", "1", "2.5")
    assert ran.out == "experiment 1 digits: the pool's default priority, weight 2.5, no max_slots\n"
    ran = cli("experiment", "set", "priority", "2", "11", "--json")
    assert json.loads(ran.out)["config"]["resources"] == {"priority": 11, "max_slots": 4}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("job", "explain", "x"), "'x' is no id of an experiment, as '7', and none of a trial, as '7.1'"),
        (("job", "explain", "9"), "there is no experiment 9"),
        (("job", "explain", "2.7"), "experiment 2 has no trial 2.7; list them with: gangline experiment trials 2"),
        (("job", "update", "2"), "give --priority, --weight, --max-slots, --ahead-of or --behind-of"),
        (("job", "update", "2", "--priority", "0"), "priority 0 is out of range; give 1 (most urgent) to 99"),
        (("experiment", "set", "priority", "2", "100"), "priority 100 is out of range; give 1 (most urgent) to 99"),
        (("job", "update", "2", "--weight=-1"), "weight -1 is out of range; give 0 or more"),
        (
            ("job", "update", "2", "--max-slots=-1"),
            "max_slots -1 is out of range; give a number of slots, 0 for no cap",
        ),
        (
            ("job", "update", "2", "--ahead-of", "1", "--when-free"),
            "--when-free says how a lower --max-slots takes effect; give both",
        ),
        (
            ("job", "update", "2", "--ahead-of", "1", "--behind-of", "1"),
            "--ahead-of and --behind-of exclude each other; give one of them",
        ),
        (
            ("job", "update", "2", "--ahead-of", "1", "--priority", "3"),
            "a moved experiment takes the priority of the one that it is moved to; change --priority, --weight or "
            "--max-slots with another command",
        ),
        (("job", "update", "2", "--ahead-of", "9"), "there is no experiment 9"),
        (("agent", "disable", "a9"), "there is no agent 'a9'"),
        (("slot", "disable", "a1"), "'a1' is no slot id; one looks like 'agent-1/0': gangline slot list"),
        (("slot", "enable", "a9/0"), "there is no agent 'a9'"),
        (("status", "--pool", "p"), "--pool and --output go with --snapshot only"),
        (("status", "--snapshot", "--pool", "p"), "there is no pool 'p'"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    cli: Cli, queue: StandInGateway, arguments: tuple[str, ...], message: str
) -> None:
    ran = cli(*arguments)
    assert (ran.status, ran.out, ran.err) == (2, "", f"error: {message}\n")


def test_who_may_not_is_told_so(cli: Cli, queue: StandInGateway) -> None:
    queue.failures = [GanglineError("auth.not_admin", "bob is no administrator", ErrorKind.FORBIDDEN)]
    ran = cli("agent", "disable", "a1")
    assert (ran.status, ran.err) == (2, "error: bob is no administrator\n")


def test_agents_and_slots_are_taken_out_and_back(cli: Cli, queue: StandInGateway) -> None:
    assert cli("agent", "disable", "a1", "--drain").out == "agent a1: DRAINING\n"
    assert cli("agent", "list").out.splitlines()[1].split()[:5] == ["a1", "default", "ALIVE", "DRAINING", "ok"]
    assert cli("agent", "disable", "a1").out == "agent a1: DISABLED\n"
    assert cli("agent", "enable", "a1").out == "agent a1: ENABLED\n"
    assert cli("slot", "disable", "a1/1").out == "slot a1/1: DISABLED\n"
    assert cli("slot", "disable", "a1/1", "--drain").out == "slot a1/1: DRAINING\n"
    assert [list(sent.slot_ids) for sent in queue.agent_updates] == [[], [], [], ["a1/1"], ["a1/1"]]
    queue.agents[0].agent.slots[0].is_healthy = False
    queue.agents[0].agent.slots[0].problem = "XID 79"
    first, second = cli("slot", "list").out.splitlines()[1:]
    assert first.endswith("ENABLED       XID 79  trial 1.1 (attempt 1)")
    assert second.split()[-3:] == ["DRAINING", "ok", "-"]
    assert "1 of 2 unhealthy" in cli("agent", "list").out
    assert json.loads(cli("slot", "enable", "a1/1", "--json").out)["availability"] == "ENABLED"


def test_snapshot_is_printed_or_written(cli: Cli, queue: StandInGateway, tmp_path: Path) -> None:
    queue.snapshot_json = '{"agents": []}\n'
    assert cli("status", "--snapshot", "--pool", "default").out == queue.snapshot_json
    ran = cli("status", "--snapshot", "-o", "dump.json")
    assert ran.out == "wrote dump.json; look at its plan with: gangline simulate dump.json\n"
    assert (tmp_path / "dump.json").read_text() == queue.snapshot_json
    ran = cli("status", "--snapshot", "-o", "none/dump.json")
    assert (ran.status, ran.err) == (2, "error: cannot write none/dump.json: No such file or directory\n")


def test_several_experiments_in_one_command(cli: Cli, queue: StandInGateway) -> None:
    assert cli("experiment", "pause", "1", "2").out == "experiment 1 digits: PAUSED\nexperiment 2 big: PAUSED\n"
    assert [experiment["id"] for experiment in json.loads(cli("e", "activate", "1", "2", "--json").out)] == [1, 2]
    ran = cli("experiment", "cancel", "9", "2", "8")
    assert (ran.status, ran.out) == (2, "experiment 2 big: STOPPING\n")
    assert ran.err == "error: there is no experiment 9\nerror: there is no experiment 8\n"
    assert cli("experiment", "kill", "1", "1").out == "experiment 1 digits: CANCELED\n"


def test_simulate_hands_everything_on(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("gangline.cli.simulate._MODULE", "json.tool")
    assert run(["simulate", "--help"]) == 0
    assert "json.tool" in capfd.readouterr().out
    assert run(["simulate", "/dev/null", "--indent", "3"]) == 1
    assert "Expecting value" in capfd.readouterr().err


def test_simulate_without_the_services_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gangline.cli.simulate._MODULE", "services_that_are_absent.scheduler")
    assert run(["simulate", "file.json"]) == 2
    assert capfd.readouterr().err == (
        "error: the planner is not installed; type: pip install gangline[cluster] (docs/install.md says from where)\n"
    )
