"""Actions on experiments that conditions choose, forks, labels, and creates that try, plan or wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gangline.cli import experiment_action, experiment_set
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import types_pb2
from tests.integration.cli.conftest import Cli
from tests.support.stand_in_gateway import StandInGateway
from tests.support.view import make_experiment


@pytest.fixture(autouse=True)
def experiments(gateway: StandInGateway) -> None:
    for number, state, outcome, labels, owner in (
        (1, "RUNNING", "", ["night"], "ann"),
        (2, "RUNNING", "", [], "ann"),
        (3, "TERMINAL", "COMPLETED", ["night"], "bob"),
        (4, "PAUSED", "", ["night", "gpu"], "bob"),
    ):
        experiment = make_experiment(
            state, outcome, id=number, labels=labels, owner=owner, config_json=_CONFIG, code_sha256="c" * 64
        )
        gateway.experiments[number] = experiment
        gateway.views[number] = [pb.ExperimentView(experiment=experiment)]


_CONFIG = json.dumps(
    {
        "name": "digits",
        "entrypoint": "model_def:Trial",
        "hyperparameters": {"global_batch_size": 16},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 10}},
    }
)


def test_conditions_choose_the_live_ones_and_yes_is_wanted(cli: Cli, gateway: StandInGateway) -> None:
    ran = cli("experiment", "kill", "--label", "night")
    assert (ran.status, ran.out) == (2, "")
    assert "nothing was killed of 2 experiments (1 digits, 4 digits): there is no terminal to ask; add --yes" in ran.err
    ran = cli("experiment", "kill", "--label", "night", "--yes")
    assert (ran.status, ran.out) == (0, "experiment 1 digits: CANCELED\nexperiment 4 digits: CANCELED\n")
    assert gateway.experiments[2].state == types_pb2.STATE_RUNNING


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        (("--owner", "bob"), [4]),
        (("--state", "paused", "--state", "running"), [1, 2, 4]),
        (("--label", "night", "--label", "gpu"), [4]),
        (("--state", "Completed"), [3]),
        (("--name", "DIG", "--owner", "ann"), [1, 2]),
    ],
)
def test_all_conditions_count(cli: Cli, options: tuple[str, ...], chosen: list[int]) -> None:
    ran = cli("experiment", "kill", *options, "--yes", "--json")
    killed = json.loads(ran.out)
    assert [one["id"] for one in (killed if isinstance(killed, list) else [killed])] == chosen


def test_a_question_names_what_it_is_about(cli: Cli, gateway: StandInGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[str] = []

    def refuse(question: str, *, err: bool) -> bool:
        questions.append(question)
        return False

    monkeypatch.setattr(experiment_action, "can_ask", lambda: True)
    monkeypatch.setattr("typer.confirm", refuse)
    ran = cli("experiment", "pause", "--state", "running")
    assert (ran.status, ran.err) == (1, "nothing was paused\n")
    ran = cli("experiment", "delete", "--label", "night")
    assert ran.status == 1
    assert questions == [
        "pause 2 experiments (1 digits, 2 digits)?",
        "delete 1 experiment (3 digits) with all checkpoints, logs and metrics? This cannot be undone",
    ]
    assert len(gateway.experiments) == 4


def test_what_is_no_choice_is_refused(cli: Cli) -> None:
    for arguments in ((), ("1", "--label", "night")):
        ran = cli("experiment", "kill", *arguments)
        assert ran.status == 2
        assert "name the experiments by their ids, or choose them" in ran.err
    ran = cli("experiment", "list", "--state", "done")
    assert ran.err.startswith("error: --state 'done' is no state; give one of ended, queued")
    ran = cli("experiment", "archive", "--owner", "nobody")
    assert (ran.status, ran.out) == (0, "no experiment matches, so none was archived\n")


def test_a_gateway_that_ignores_conditions_changes_nothing(cli: Cli, gateway: StandInGateway) -> None:
    gateway.knows_filters = False
    ran = cli("experiment", "kill", "--label", "gpu", "--yes")
    assert (ran.status, ran.err) == (2, "error: this gateway is too old to choose experiments; name their ids\n")
    assert gateway.experiments[1].state == types_pb2.STATE_RUNNING


def test_lists_take_the_same_conditions(cli: Cli) -> None:
    rows = cli("experiment", "list", "--label", "night", "--owner", "bob").out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["4", "3"]


def test_texts_and_labels(cli: Cli, gateway: StandInGateway) -> None:
    assert cli("experiment", "label", "add", "1", "a", "b").out == "experiment 1 digits: labels: a, b, night\n"
    assert cli("experiment", "label", "remove", "1", "b").out == "experiment 1 digits: labels: a, night\n"
    assert cli("experiment", "set", "name", "1", "better").out.startswith("experiment 1 better")
    ran = cli("experiment", "label", "add", "1", "two\nlines")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert cli("experiment", "set", "notes", "1", "seen\ntwice").status == 0
    assert gateway.experiments[1].notes == "seen\ntwice"


def test_a_policy_shows_what_it_deletes_and_asks(
    cli: Cli, gateway: StandInGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.checkpoints = [
        types_pb2.Checkpoint(
            id=f"c{number}", trial_id="1.1", experiment_id=1, batches_completed=number, file_bytes={"w": 1024}
        )
        for number in (1, 2)
    ]
    policy = ("experiment", "set", "gc-policy", "1", "--save-trial-best", "0", "--save-trial-latest", "1")
    ran = cli(*policy)
    assert (ran.status, ran.out, gateway.updates) == (2, "", [])
    assert ran.err == (
        "error: nothing was changed: 2 checkpoints of experiment 1 (2.0 KB) would be deleted for good, and there is "
        "no terminal to ask; add --yes\n"
    )
    questions: list[str] = []
    monkeypatch.setattr(experiment_set, "can_ask", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda question, err: questions.append(question))
    ran = cli(*policy)
    assert (ran.status, gateway.updates) == (1, [])
    assert ran.err == "  c1  trial 1.1, batch 1\n  c2  trial 1.1, batch 2\nnothing was changed\n"
    assert questions == ["delete 2 checkpoints of experiment 1 (2.0 KB) for good?"]
    ran = cli(*policy, "--yes")
    assert (ran.status, ran.out) == (
        0,
        "experiment 1 digits keeps: save_experiment_best 0, save_trial_best 0, save_trial_latest 1, logs as long as "
        "the gateway does, metrics as long as the gateway does\n",
    )
    [update] = gateway.updates
    assert not update.retention.HasField("save_experiment_best"), "what is not given stays"
    for bad in (("--save-trial-best=-1",), ()):
        ran = cli("experiment", "set", "gc-policy", "1", *bad)
        assert (ran.status, ran.err.count("\n")) == (2, 1)


def test_days_of_logs(cli: Cli, gateway: StandInGateway) -> None:
    command = ("experiment", "set", "log-retention", "1")
    assert "logs for 1 day, metrics for ever" in cli(*command, "--days", "1", "--metric-days=-1").out
    assert "logs for ever" in cli(*command, "--forever").out
    for bad in ((), ("--days", "1", "--forever"), ("--days", "99999")):
        ran = cli(*command, *bad)
        assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert len(gateway.updates) == 2


def test_a_fork_takes_code_and_configuration_with_changes(cli: Cli, gateway: StandInGateway) -> None:
    ran = cli("experiment", "fork", "3", "--config", "searcher.max_length.epochs=2", "--paused", "--request-id", "f1")
    line = "it is paused; activate it: gangline experiment activate 5"
    assert ran.out == f"created experiment 5 digits from experiment 3\n{line}\n"
    [request] = gateway.requests
    assert (request.code_sha256, request.forked_from, request.paused) == ("c" * 64, 3, True)
    assert request.request_id == "f1"
    length = json.loads(request.config_json)["searcher"]["max_length"]
    assert length == {"epochs": 2}
    ran = cli("experiment", "fork", "3", "--config", "searcher.max_lenght.epochs=2")
    assert (ran.status, ran.err.count("\n"), len(gateway.requests)) == (2, 1, 1)


def test_an_ended_experiment_continues_with_changes(cli: Cli, gateway: StandInGateway) -> None:
    ran = cli("experiment", "continue", "3", "--config", "searcher.max_length.epochs=9", "--request-id", "c1")
    assert ran.out == "experiment 3 digits continues\nfollow it: gangline experiment logs -f 3\n"
    [request] = gateway.continues
    assert (request.request_id, json.loads(request.overrides_json)) == ("c1", {"searcher.max_length.epochs": 9})
    assert request.code_sha256 == ""


def test_other_code_and_other_sections_go_along(cli: Cli, gateway: StandInGateway, tmp_path: Path) -> None:
    code = tmp_path / "mended"
    code.mkdir()
    (code / "train.py").write_text("print('mended')\n")
    file = tmp_path / "more.yaml"
    file.write_text("searcher: {name: single, metric: loss, max_length: {epochs: 7}}\nmax_restarts: 2\n")
    options = ("--config-file", str(file), "--config", "max_restarts=1", "--config", "entrypoint=python3 train.py")
    assert cli("experiment", "continue", "3", str(code), *options).status == 0
    assert cli("experiment", "fork", "3", str(code), *options).status == 0
    [continued], [forked] = gateway.continues, gateway.requests
    assert gateway.codes.keys() == {continued.code_sha256} == {forked.code_sha256}
    overrides = json.loads(continued.overrides_json)
    assert (overrides["max_restarts"], overrides["searcher"]["max_length"]) == (1, {"epochs": 7})
    config = json.loads(forked.config_json)
    assert (config["max_restarts"], config["searcher"]["max_length"]) == (1, {"epochs": 7})
    ran = cli("experiment", "continue", "3", str(code), "--config", "entrypoint=model_def:Trial")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "model_def" in ran.err
    assert len(gateway.continues) == 1


def test_a_create_with_changes_and_a_dry_run(cli: Cli, gateway: StandInGateway, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "model_def.py").write_text(
        "from gangline.pytorch import PyTorchTrial\n\n\nclass Trial(PyTorchTrial):\n    pass\n"
    )
    file = code / "exp.yaml"
    file.write_text(_CONFIG)
    gateway.preview = types_pb2.SearchPreview(
        searcher="single", seed=7, num_trials=1, hyperparameters_json=["{}"], unit="batches",
        min_total=20, expected_total=20, max_total=20, slots_per_trial=4, pace_trial_id="3.1", seconds_per_unit=90.0,
    )  # fmt: skip
    ran = cli("experiment", "create", str(file), "--dry-run", "--config", "searcher.max_length.batches=20")
    assert (
        "cost: about 2 slot-hours, 4 slots a trial, at the pace of trial 3.1: 90 s for each of the batches" in ran.out
    )
    assert gateway.requests == []
    gateway.preview.pace_trial_id = ""
    assert "cost: not known, because no comparable trial has run yet" in cli("preview-search", str(file)).out
    # It does not wait for somebody who activates it.
    ran = cli("experiment", "create", str(file), "--paused", "-f", "--config", "searcher.max_length.batches=20")
    assert ran.status == 0
    assert ran.out.splitlines()[-1].startswith("it is paused; activate it: gangline experiment activate ")
    assert "WatchExperiment" not in gateway.calls
    [request] = gateway.requests
    assert request.paused
    assert json.loads(request.config_json)["searcher"]["max_length"]["batches"] == 20
