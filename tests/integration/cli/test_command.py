"""Every command against a gateway on the network: its text, its JSON and its exit status."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gangline.cli import nearest_command
from gangline.cli.output import live
from gangline.config import parse_config
from gangline.errors import Effect, conflict, unavailable
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import ingest_pb2, types_pb2
from tests.integration.cli.conftest import Cli
from tests.support.stand_in_gateway import TOKEN, StandInGateway
from tests.support.view import (
    make_agent_view,
    make_allocation,
    make_checkpoint,
    make_experiment,
    make_lifecycle,
    make_log,
    make_trial,
)


def test_create_prints_the_number_warnings_and_what_to_type(cli: Cli, code: Path) -> None:
    ran = cli("experiment", "create", str(code / "const.yaml"), str(code))
    assert ran.status == 0
    assert ran.out == "created experiment 1 digits\nfollow it: gangline experiment logs -f 1\n"
    assert ran.err == (
        "warning: hyperparameters.global_batch_size: 66 is no multiple of 4 slots; training uses 64 (16 on each slot)\n"
    )


def test_create_takes_the_folder_of_the_file_and_prints_json(cli: Cli, code: Path, gateway: StandInGateway) -> None:
    ran = cli("e", "create", str(code / "const.yaml"), "--json")
    assert json.loads(ran.out)["experiment"]["config"]["resources"]["slots_per_trial"] == 4
    assert len(gateway.codes) == 1


def test_create_and_follow_tells_the_story(cli: Cli, code: Path, gateway: StandInGateway) -> None:
    gateway.views[1] = make_lifecycle()
    ran = cli("experiment", "create", "-f", str(code / "const.yaml"), str(code))
    assert ran.status == 0
    assert ran.out.splitlines() == [
        "experiment 1 digits: QUEUED, needs 4 slots; 2 are free; starts if 2 more slots became free",
        "experiment 1 digits: RUNNING on a1 (2 slots), a2 (2 slots), 50 of 200 batches (25%), loss 0.5, 1234 samples/s",
        "experiment 1 digits: COMPLETED after 12.5 s",
        "  validation: accuracy 0.972",
        "  checkpoint: c0ffee (after 200 batches)",
        "  next: gangline experiment metrics 1",
        "  next: gangline checkpoint download c0ffee",
    ]


def test_followed_experiment_that_fails_is_a_failure(cli: Cli, code: Path, gateway: StandInGateway) -> None:
    gateway.views[1] = [
        pb.ExperimentView(experiment=make_experiment("TERMINAL", "FAILED", reason="x", ended_at=1001.0))
    ]
    ran = cli("experiment", "create", "-f", "--json", str(code / "const.yaml"))
    assert ran.status == 1
    assert json.loads(ran.out)["experiment"]["outcome"] == "FAILED"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("slots_per_trial: 4", "slot_per_trial: 4"),
            "error: resources.slot_per_trial (line 5): unknown key; did you mean slots_per_trial?\n",
        ),
        (("Digits", "Digit"), "error: model_def.py defines no Digit; the classes in it are: Digits\n"),
        (
            ("66", "3"),
            "error: hyperparameters.global_batch_size (line 3): 3 is smaller than the 4 slots of "
            "resources.slots_per_trial; use at least 4, or fewer slots\n",
        ),
    ],
)
def test_mistake_in_the_input_is_one_line_and_status_2(
    cli: Cli, code: Path, gateway: StandInGateway, change: tuple[str, str], message: str
) -> None:
    config = code / "const.yaml"
    config.write_text(config.read_text().replace(*change))
    ran = cli("experiment", "create", str(config))
    assert (ran.status, ran.out, ran.err) == (2, "", message)
    assert gateway.calls == []


def test_file_that_is_not_there(cli: Cli) -> None:
    ran = cli("experiment", "create", "none.yaml")
    assert (ran.status, ran.err) == (2, "error: cannot read none.yaml: there is no such file; give the YAML file\n")


def test_list_and_its_alias(cli: Cli, gateway: StandInGateway) -> None:
    assert cli("experiment", "list").out == "no experiments yet; create one with gangline experiment create\n"
    gateway.experiments = {
        1: make_experiment("TERMINAL", "COMPLETED", ended_at=1012.5),
        2: make_experiment(id=2, created_at=time.time() - 30),
    }
    lines = cli("e", "ls").out.splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["ID", "NAME", "STATE", "OWNER"],
        ["2", "digits", "RUNNING", "admin"],
        ["1", "digits", "COMPLETED", "admin"],
    ]
    assert lines[2].endswith("12.5 s")
    assert [e["id"] for e in json.loads(cli("experiment", "list", "--json", "--limit", "1").out)] == [2]


def test_describe(cli: Cli, gateway: StandInGateway) -> None:
    gateway.experiments[1] = make_experiment()
    gateway.views[1] = make_lifecycle()[:2]
    written = "name: mine\nentrypoint: python3 train.py\nsearcher:\n  name: single\n  metric: loss"
    for view in gateway.views[1]:
        view.experiment.config_json = parse_config(written)[0].model_dump_json()
    ran = cli("experiment", "describe", "1")
    assert ran.out.splitlines()[0].startswith("experiment 1 digits: RUNNING on a1")
    _, shown = ran.out.split("configuration, without what is at its default:\n")
    assert shown.splitlines() == [f"  {line}" for line in written.splitlines()]
    assert json.loads(cli("experiment", "describe", "1", "--json").out)["trials"][0]["trial"]["id"] == "1.1"


def test_logs_show_rank_and_never_read_markup(cli: Cli, gateway: StandInGateway) -> None:
    gateway.logs = [make_log(1, "[bold]x[/bold]", rank=0), make_log(2, "starts", rank=None)]
    assert cli("experiment", "logs", "1").out.splitlines() == [
        "1970-01-01 00:16:41.000 INFO  [1.1 rank 0] [bold]x[/bold]",
        "1970-01-01 00:16:42.000 INFO  [1.1 runner] starts",
    ]
    assert json.loads(cli("e", "logs", "1", "--tail", "1", "--json").out)["text"] == "starts"


def test_metrics(cli: Cli, gateway: StandInGateway) -> None:
    point = ingest_pb2.MetricsPoint(group="validation", batches_completed=200, metrics={"loss": 0.25, "accuracy": 0.97})
    gateway.metrics = [pb.StoredMetrics(id=1, trial_id="1.1", point=point)]
    assert cli("experiment", "metrics", "1").out == "1.1  validation       200 batches  accuracy 0.97, loss 0.25\n"
    assert json.loads(cli("experiment", "metrics", "1", "--json").out)["point"]["metrics"]["loss"] == 0.25
    values = '{"note": "猫", "by_class": [0.5, NaN], "long": "%s"}' % ("x" * 100)
    gateway.metrics[0].point.values_json = values
    line = f'accuracy 0.97, loss 0.25, by_class [0.5, NaN], long "{"x" * 78}…, note "猫"\n'
    assert cli("experiment", "metrics", "1").out == f"1.1  validation       200 batches  {line}"
    shown = json.loads(cli("experiment", "metrics", "1", "--json").out)["point"]["values"]
    assert shown == {"note": "猫", "by_class": [0.5, None], "long": "x" * 100}
    gateway.metrics[0].point.metrics.clear()
    assert "batches  by_class" in cli("experiment", "metrics", "1").out
    ran = cli("experiment", "metrics", "1", "--group", "test")
    assert (ran.status, ran.out, ran.err) == (
        0,
        "",
        "warning: nothing was reported under the group 'test'; without --group all groups are shown\n",
    )


def test_wait(cli: Cli, gateway: StandInGateway) -> None:
    gateway.experiments[1] = make_experiment()
    gateway.views[1] = make_lifecycle()
    assert cli("experiment", "wait", "1").status == 0
    gateway.views[1] = make_lifecycle()[:1]
    ran = cli("experiment", "wait", "1", "--timeout", "0.0001")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.splitlines()[-1] == "error: experiment 1 has not ended after 0.0001 s"


def test_kill(cli: Cli, gateway: StandInGateway) -> None:
    gateway.experiments[1] = make_experiment()
    assert cli("experiment", "kill", "1").out == "experiment 1 digits: CANCELED\n"
    ran = cli("experiment", "kill", "9")
    assert (ran.status, ran.err) == (2, "error: there is no experiment 9\n")


def test_trace_of_a_running_trial_says_what_happens_next(cli: Cli, gateway: StandInGateway) -> None:
    ran = cli("trial", "profile", "7.1")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "trial 7.1: 10 batches are traced once the trial has heard of it, within seconds while it trains",
        "  when it begins and when it is written: gangline trial logs -f 7.1",
        "  the trace comes to: /storage/tensorboard/7.1/*.pt.trace.json",
        "  look at it: tensorboard --logdir /storage/tensorboard/7.1 (with torch-tb-profiler), or open it in "
        "ui.perfetto.dev",
    ]
    assert json.loads(cli("trial", "profile", "7.1", "--batches", "1", "--json").out) == {
        "trial_id": "7.1",
        "allocation_id": "7.1.1",
        "batches": 1,
        "tensorboard_url": "file:///storage/tensorboard/7.1",
    }
    assert [order.batches for order in gateway.trace_orders] == [10, 1]


@pytest.mark.parametrize("batches", ["0", "51", "1000000000000"])
def test_trace_of_too_few_or_many_batches_is_refused(cli: Cli, gateway: StandInGateway, batches: str) -> None:
    ran = cli("trial", "profile", "7.1", "--batches", batches)
    assert (ran.status, ran.out, ran.err) == (2, "", f"error: a trace has 1 to 50 batches, not {batches}\n")
    assert not gateway.trace_orders


def test_refused_trace_is_one_line(cli: Cli, gateway: StandInGateway) -> None:
    gateway.failures = [conflict("trial.not_running", "trial 7.1 has ended (COMPLETED)")]
    ran = cli("trial", "profile", "7.1")
    assert (ran.status, ran.out, ran.err) == (2, "", "error: trial 7.1 has ended (COMPLETED)\n")
    assert cli("trial", "profile", "seven").status == 2


def test_tasks_say_where_or_why_not(cli: Cli, gateway: StandInGateway) -> None:
    reason = types_pb2.Reason(code=types_pb2.REASON_CODE_NO_CAPACITY, message="needs 8 slots; 2 are free")
    request = types_pb2.Request(trial_id="2.1", slots=8, submitted_at=1000.0)
    gateway.tasks = [
        pb.Task(trial=make_trial(), experiment_name="digits", allocation=make_allocation(("a1", 2), ("a2", 2))),
        pb.Task(trial=make_trial("QUEUED", id="2.1"), experiment_name="big", request=request, reason=reason),
        pb.Task(trial=make_trial("QUEUED", id="3.1"), experiment_name="lone", request=request),
    ]
    lines = cli("task", "list").out.splitlines()
    assert lines[1].endswith("a1 (2), a2 (2)")
    assert lines[2].endswith("needs 8 slots; 2 are free")
    assert lines[3].endswith("no scheduler leads, so nobody can say why")
    assert json.loads(cli("t", "ls", "--json").out)[1]["request"]["slots"] == 8


def test_agents_and_slots(cli: Cli, gateway: StandInGateway) -> None:
    assert cli("agent", "list").out == "no agents have joined\n"
    gateway.agents = [make_agent_view()]
    assert cli("agent", "list").out.splitlines()[1].split()[:5] == ["a1", "default", "ALIVE", "ENABLED", "ok"]
    assert [line.rpartition("  ")[2] for line in cli("slot", "list").out.splitlines()[1:]] == [
        "trial 1.1 (attempt 1)",
        "free",
    ]
    assert [slot["allocation_id"] for slot in json.loads(cli("s", "list", "--json").out)] == ["1.1.1", None]


def test_checkpoints(cli: Cli, gateway: StandInGateway, tmp_path: Path) -> None:
    gateway.checkpoints = [
        types_pb2.Checkpoint(id="c0ffee", trial_id="1.1", experiment_id=1, batches_completed=9, file_bytes={"a": 2048})
    ]
    gateway.files = {"a": b"x" * 2048}
    assert cli("checkpoint", "list").out.splitlines()[1].split() == [
        "c0ffee",
        "1.1",
        "9",
        "COMPLETED",
        "2.0",
        "KB",
        "-",
    ]
    assert cli("checkpoint", "list", "2").out == "no checkpoints yet\n"
    assert cli("checkpoint", "download", "c0ffee").out == f"2.0 KB in {tmp_path}/c0ffee\n"
    assert (tmp_path / "c0ffee" / "a").read_bytes() == b"x" * 2048
    assert json.loads(cli("c", "download", "c0ffee", "-o", "other", "--json").out)["num_bytes"] == 2048


def test_checkpoints_are_deleted_without_a_question(cli: Cli, gateway: StandInGateway) -> None:
    gateway.checkpoints = [types_pb2.Checkpoint(id=name, trial_id="1.1", experiment_id=1) for name in ("a", "b", "c")]
    ran = cli("checkpoint", "rm", "a", "nope")
    assert (ran.status, ran.out, ran.err) == (2, "", "error: there is no checkpoint nope\n")
    assert cli("checkpoint", "rm", "a", "b").out == "a is being deleted\nb is being deleted\n"
    deleted = json.loads(cli("c", "rm", "c", "--json").out)
    assert [(checkpoint["id"], checkpoint["state"]) for checkpoint in deleted] == [("c", "DELETING")]
    assert [line.split()[3] for line in cli("c", "ls").out.splitlines()[1:]] == ["DELETING"] * 3
    assert cli("checkpoint", "rm").status == 2


def test_status_of_a_cluster_elsewhere(cli: Cli, gateway: StandInGateway) -> None:
    gateway.cluster.num_agents, gateway.cluster.num_slots, gateway.cluster.num_slots_used = 2, 4, 3
    assert cli("status").out == (
        "leader:  none, so nothing new starts\nagents:  2\nslots:   3 of 4 used\npending: 0\nversion: 0.1.0\n"
    )
    gateway.cluster.leader.id, gateway.cluster.leader.grpc_address = "s1", "h:1"
    assert json.loads(cli("status", "--json").out)["cluster"]["leader"]["id"] == "s1"


def test_status_names_etcd(cli: Cli, gateway: StandInGateway) -> None:
    gateway.cluster.etcd.is_available = True
    gateway.cluster.etcd.num_members = gateway.cluster.etcd.num_answering = 3
    assert cli("status").out.startswith("etcd:    3 of 3 members answer\n")
    gateway.cluster.etcd.problem, gateway.cluster.etcd.since = "etcd has no quorum", time.time() - 130
    assert cli("status").out.startswith("etcd:    etcd has no quorum, for 2 min\n")
    assert json.loads(cli("status", "--json").out)["cluster"]["etcd"]["problem"] == "etcd has no quorum"


def test_a_change_whose_outcome_is_open_has_an_exit_status_of_its_own(
    cli: Cli, gateway: StandInGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_RETRY_SECONDS", "0")
    gateway.failures = [unavailable("state.unwritable", "etcd is slow", Effect.UNKNOWN)]
    ran = cli("experiment", "kill", "1")
    assert (ran.status, ran.err) == (
        3,
        "error: it is not known whether this was done: etcd is slow; repeat it, which is safe\n",
    )


def test_of_several_changes_the_one_that_fails_hides_none_that_was_made(
    cli: Cli, gateway: StandInGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_RETRY_SECONDS", "0")
    for number in (1, 2, 3):
        gateway.experiments[number] = make_experiment(id=number)
    after_one = gateway.KillExperiment

    def kill(request: pb.KillExperimentRequest, context: object) -> pb.KillExperimentResponse:
        if request.experiment_id == 2:
            gateway.failures = [unavailable("state.unwritable", "etcd has no quorum", Effect.NONE)]
        return after_one(request, context)

    monkeypatch.setattr(gateway, "KillExperiment", kill)
    gateway.stop()
    gateway.start(gateway.address)
    ran = cli("experiment", "kill", "1", "2", "3")
    assert (ran.status, ran.out.startswith("experiment 1 ")) == (1, True), ran
    assert ran.err == "error: experiment 2: nothing was changed: etcd has no quorum; not tried: 3\n"


def test_wrong_token_is_the_users_and_an_absent_cluster_is_not(
    cli: Cli, gateway: StandInGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_RETRY_SECONDS", "0.1")
    gateway.failures = [unavailable("scheduler.away", "no scheduler leads", Effect.NONE)] * 100
    ran = cli("experiment", "kill", "1")
    assert (ran.status, ran.err) == (1, "error: nothing was changed: no scheduler leads\n")
    gateway.failures = []
    monkeypatch.setenv("GANGLINE_TOKEN", "wrong")
    ran = cli("experiment", "list")
    assert (ran.status, ran.err) == (2, "error: nobody holds this token; look into the admin.token file\n")


def test_panel_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from gangline.domain.view import ExperimentView
    from gangline.protocol.wire import from_proto

    drawn = [live._panel(from_proto(ExperimentView, message), 1010.0) for message in make_lifecycle()]
    text = "\n".join(_render(panel) for panel in drawn)
    assert "waits: needs 4 slots; 2 are free; starts if 2 more slots became free" in text
    assert "50 of 200 batches (25%) loss 0.5, 1234 samples/s" in text
    assert "validation: accuracy 0.972" in text


def _render(panel: object) -> str:
    from rich.console import Console

    console = Console(width=160, record=True, file=io.StringIO())
    console.print(panel)
    return console.export_text()


def test_program_as_a_process(utc: None, gateway: StandInGateway, tmp_path: Path) -> None:
    gateway.logs = [make_log(n, f"line {n}") for n in range(1, 4)]
    environment = {
        **os.environ,
        "GANGLINE_HOME": str(tmp_path),
        "GANGLINE_GATEWAY": gateway.address,
        "GANGLINE_TOKEN": TOKEN,
    }

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "gangline.cli", *arguments]
        return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=30, check=False)

    assert call("experiment", "logs", "1", "-f").stdout.splitlines() == [
        f"1970-01-01 00:16:4{n}.000 INFO  [1.1 rank 0] line {n}" for n in range(1, 4)
    ]
    missing = call("experiment", "describe", "7")
    assert (missing.returncode, missing.stdout, missing.stderr) == (2, "", "error: there is no experiment 7\n")
    wrong = call("experiment", "describe", "seven")
    assert wrong.returncode == 2
    assert call("--version").stdout == "0.1.0\n"


def test_help_loads_neither_grpc_nor_pydantic_nor_rich() -> None:
    script = (
        "import sys; from gangline.cli.main import run; status = run(['--help']);"
        "heavy = {'grpc', 'pydantic', 'rich', 'torch', 'yaml'} & set(sys.modules);"
        "sys.exit(status or ','.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Exit status: 0 success, 1 failure" in done.stdout


@pytest.mark.parametrize("module", ["gangline.cli.main", "typer", "gangline.cli.experiment"])
def test_ctrl_c_at_the_start_shows_no_traceback(environment: dict[str, str], module: str) -> None:
    """The program gets the signal as it begins to load the module."""
    program = f"""
import os, signal, sys, importlib.abc
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["gangline", "experiment", "list"]
from gangline.cli.__main__ import main
main()
"""
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("logs 6 -f", "there is no command 'logs'; did you mean gangline experiment logs 6 -f?"),
        ("kill 6", "there is no command 'kill'; did you mean gangline experiment kill 6?"),
        ("kill 6.1", "there is no command 'kill'; did you mean gangline trial kill 6.1?"),
        ("ps", "there is no command 'ps'; did you mean gangline experiment list or gangline task list?"),
        ("experiment logs 6.1", "6.1 is a trial and no experiment; did you mean gangline trial logs 6.1?"),
        ("e describe 6.1 --json", "6.1 is a trial and no experiment; did you mean gangline trial describe 6.1 --json?"),
        ("trial describe 6", "6 is an experiment; list its trials with: gangline experiment trials 6"),
        ("trial describe 6.1.2", "6.1.2 is an attempt of trial 6.1; give the id of the trial"),
        ("experiment wait 6.1", "ID: expected an integer, not '6.1'; see gangline experiment wait --help"),
    ],
)
def test_the_nearest_command_or_record_is_named(cli: Cli, line: str, text: str) -> None:
    ran = cli(*line.split())
    assert (ran.status, ran.out, ran.err) == (2, "", f"error: {text}\n")


def test_every_synonym_is_a_command(cli: Cli) -> None:
    for commands in nearest_command._SYNONYMS.values():
        for command in commands:
            assert cli(*command.split(), "--help").status == 0, command


def test_the_beginning_of_a_checkpoints_id_names_the_checkpoint(cli: Cli, gateway: StandInGateway) -> None:
    gateway.checkpoints = [make_checkpoint(name) for name in ("c0ffee", "c0ffin", "beef01")]
    ran = cli("checkpoint", "describe", "beef")
    assert (ran.status, ran.err) == (2, "error: there is no checkpoint beef; did you mean beef01?\n")
    assert "did you mean c0ffee? (2 begin so)" in cli("checkpoint", "describe", "c0ff").err
    assert "did you mean" not in cli("checkpoint", "describe", "bee").err
