"""The commands for searches and for what is done to experiments and trials: their text, JSON and exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import ingest_pb2, types_pb2
from tests.integration.cli.conftest import Cli
from tests.support.stand_in_gateway import StandInGateway
from tests.support.view import make_experiment, make_trial

CONFIG = json.dumps({"searcher": {"name": "grid", "metric": "accuracy", "smaller_is_better": False}})


def _view(experiment: types_pb2.Experiment) -> pb.ExperimentView:
    """A grid of four: one completed, one failed, one runs, one waits."""
    points = [{"net": {"depth": depth}, "lr": lr, "batch": 64} for depth in (1, 2) for lr in (0.01, 0.1)]
    states = [("TERMINAL", "COMPLETED"), ("TERMINAL", "FAILED"), ("RUNNING", ""), ("QUEUED", "")]
    trials = [
        pb.TrialView(
            trial=make_trial(
                state, outcome, id=f"1.{n}", number=n, hyperparameters_json=json.dumps(point), batches_completed=10 * n
            )
        )
        for n, ((state, outcome), point) in enumerate(zip(states, points, strict=True), 1)
    ]
    for number, best in ((0, 0.9), (2, 0.75)):
        trials[number].trial.best_validation = best
    trials[0].trial.latest_checkpoint_id = "c0ffee"
    trials[2].progress.CopyFrom(ingest_pb2.ProgressPoint(batches_completed=35, batches_total=100))
    trials[3].reason.CopyFrom(
        types_pb2.Reason(code=types_pb2.REASON_CODE_NO_CAPACITY, message="needs 1 slot; 0 are free")
    )
    search = types_pb2.Search(experiment_id=1, num_wanted=4, num_planned=6)
    code = types_pb2.REASON_CODE_SEARCH_WAITING
    reason = types_pb2.Reason(
        code=code, message="4 of 6 trials are made, 2 at a time", would_start_if="one of these ends: 1.3"
    )
    return pb.ExperimentView(experiment=experiment, trials=trials, search=search, reason=reason)


@pytest.fixture
def view(gateway: StandInGateway) -> pb.ExperimentView:
    gateway.experiments[1] = make_experiment(config_json=CONFIG)
    view = _view(gateway.experiments[1])
    gateway.views[1] = [view]
    return view


TABLE = [
    "TRIAL  STATE      HYPERPARAMETERS         BATCHES    BEST accuracy",
    "1.1    COMPLETED  net.depth 1, lr 0.01    10         0.9 *",
    "1.2    FAILED     net.depth 1, lr 0.1     20         -",
    "1.3    RUNNING    net.depth 2, lr 0.01    35 of 100  0.75",
    "1.4    QUEUED     net.depth 2, lr 0.1     40         -",
]


def _squeezed(lines: list[str]) -> list[str]:
    return [" ".join(line.split()) for line in lines]


def test_trials_are_a_table(cli: Cli, view: pb.ExperimentView) -> None:
    ran = cli("experiment", "trials", "1")
    assert _squeezed(ran.out.splitlines()) == _squeezed(TABLE)
    assert [entry["trial"]["id"] for entry in json.loads(cli("e", "trials", "1", "--json").out)] == [
        "1.1", "1.2", "1.3", "1.4",
    ]  # fmt: skip


def test_describe_shows_all_trials_and_why_no_further_one_starts(cli: Cli, view: pb.ExperimentView) -> None:
    lines = cli("experiment", "describe", "1").out.splitlines()
    assert lines[0] == (
        "experiment 1 digits: RUNNING, 2 of 6 trials ended (1 FAILED), 1 RUNNING, 1 QUEUED, "
        "best accuracy 0.9 (trial 1.1)"
    )
    assert lines[1] == "  4 of 6 trials are made, 2 at a time; goes on if one of these ends: 1.3"
    assert _squeezed(lines[2:7]) == _squeezed(TABLE)
    view.trials[3].trial.state = types_pb2.STATE_PAUSED
    assert "1 RUNNING, 1 PAUSED, best" in cli("experiment", "describe", "1").out


def test_end_of_a_search_names_the_best_trials_checkpoint(cli: Cli, view: pb.ExperimentView) -> None:
    view.experiment.CopyFrom(make_experiment("TERMINAL", "COMPLETED", config_json=CONFIG, ended_at=1012.5))
    for trial in view.trials[2:]:
        trial.trial.state, trial.trial.outcome = types_pb2.STATE_TERMINAL, types_pb2.OUTCOME_COMPLETED
    view.trials[3].trial.latest_checkpoint_id = "other"
    lines = cli("experiment", "wait", "1").out.splitlines()
    assert lines[0] == "experiment 1 digits: COMPLETED after 12.5 s"
    assert lines[1] == "  4 of 6 trials ended (1 FAILED), best accuracy 0.9 (trial 1.1)"
    assert lines[-1] == "  next: gangline checkpoint download c0ffee"


@pytest.mark.parametrize(("verb", "state"), [("pause", "PAUSED"), ("activate", "QUEUED"), ("cancel", "STOPPING")])
def test_changing_an_experiment(cli: Cli, view: pb.ExperimentView, verb: str, state: str) -> None:
    assert cli("experiment", verb, "1").out == f"experiment 1 digits: {state}\n"
    assert json.loads(cli("experiment", verb, "1", "--json").out)["state"] == state
    missing = cli("experiment", verb, "9")
    assert (missing.status, missing.err) == (2, "error: there is no experiment 9\n")


def test_killing_a_trial(cli: Cli, view: pb.ExperimentView) -> None:
    assert cli("trial", "kill", "1.3").out == "trial 1.3: CANCELED\n"
    assert json.loads(cli("trial", "kill", "1.4", "--json").out)["outcome"] == "CANCELED"
    missing = cli("trial", "kill", "1.9")
    assert (missing.status, missing.err) == (2, "error: there is no trial 1.9\n")
    wrong = cli("trial", "kill", "seven")
    assert (wrong.status, wrong.err) == (2, "error: 'seven' is no trial id; one looks like '7.1'\n")


def test_describing_a_trial(cli: Cli, view: pb.ExperimentView) -> None:
    assert cli("trial", "describe", "1.3").out.splitlines() == [
        "trial 1.3: RUNNING, 35 of 100 batches (35%)",
        "  hyperparameters: net.depth 2, lr 0.01, batch 64",
        "  best validation: 0.75 (after 0 batches)",
    ]
    assert json.loads(cli("trial", "describe", "1.3", "--json").out)["trial"]["id"] == "1.3"
    missing = cli("trial", "describe", "1.9")
    assert missing.err.startswith("error: there is no trial 1.9; ")


def test_logs_and_metrics_of_a_trial(cli: Cli, view: pb.ExperimentView, gateway: StandInGateway) -> None:
    for number, trial_id in ((1, "1.1"), (2, "1.3")):
        line = ingest_pb2.LogLine(rank=0, text=f"from {trial_id}", stream="stdout")
        gateway.logs.append(pb.StoredLog(id=number, trial_id=trial_id, at=1.0, line=line))
        point = ingest_pb2.MetricsPoint(group="validation", batches_completed=5, metrics={"accuracy": 0.5})
        gateway.metrics.append(pb.StoredMetrics(id=number, trial_id=trial_id, at=1.0, point=point))
    assert cli("trial", "logs", "1.3").out == "1970-01-01 00:00:01.000 INFO  [1.3 rank 0] from 1.3\n"
    assert "accuracy 0.5" in cli("trial", "metrics", "1.3").out


def test_preview_of_a_search(cli: Cli, tmp_path: Path, gateway: StandInGateway) -> None:
    gateway.preview = types_pb2.SearchPreview(
        searcher="grid", seed=7, num_trials=3, max_concurrent_trials=2,
        hyperparameters_json=['{"lr": 0.1, "batch": 64}', '{"lr": 0.2, "batch": 64}'],
    )  # fmt: skip
    config = tmp_path / "grid.yaml"
    config.write_text(
        "entrypoint: model_def:T\nhyperparameters:\n  lr: {type: double, minval: 0, maxval: 1, count: 3}\n"
        "searcher: {name: grid, metric: loss, max_length: 5}\n"
    )
    assert cli("preview-search", str(config)).out.splitlines() == [
        "grid: 3 trials, at most 2 at a time, seed 7",
        "TRIAL  HYPERPARAMETERS",
        "1      lr 0.1",
        "2      lr 0.2",
        "and 1 more; --limit 3 shows all",
        f"to create them: gangline experiment create --seed 7 {config}",
    ]
    assert json.loads(cli("preview-search", str(config), "--json").out)["num_trials"] == 3
    config.write_text(config.read_text().replace(", count: 3", ""))
    wrong = cli("preview-search", str(config))
    assert (wrong.status, wrong.err) == (
        2, "error: hyperparameters.lr.count (line 3): required by the searcher 'grid', but missing\n",
    )  # fmt: skip


def test_preview_of_successive_halving_shows_its_rungs(cli: Cli, tmp_path: Path, gateway: StandInGateway) -> None:
    rungs = [
        types_pb2.SearchRung(length=4, min_trials=12, expected_trials=12, max_trials=12),
        types_pb2.SearchRung(length=16, min_trials=1, expected_trials=4, max_trials=12),
    ]
    last = [types_pb2.SearchRung(length=16, min_trials=4, expected_trials=4, max_trials=4)]
    gateway.preview = types_pb2.SearchPreview(
        searcher="adaptive_asha", seed=7, num_trials=16, max_concurrent_trials=12, unit="epochs",
        brackets=[
            types_pb2.SearchBracket(num_trials=12, max_concurrent_trials=8, rungs=rungs),
            types_pb2.SearchBracket(num_trials=4, max_concurrent_trials=4, rungs=last),
        ],
        min_total=124, expected_total=160, max_total=256,
    )  # fmt: skip
    config = tmp_path / "asha.yaml"
    config.write_text(
        "entrypoint: model_def:T\nsearcher: {name: adaptive_asha, metric: loss, max_trials: 16, "
        "max_length: {epochs: 16}}\n"
    )
    assert cli("preview-search", str(config)).out.splitlines()[:6] == [
        "adaptive_asha: 16 trials, at most 12 at a time, seed 7",
        "BRACKET  TRIALS  AT ONCE  RUNG       AT LEAST  ABOUT  AT MOST",
        "1        12      8        4 epochs   12        12     12",
        "                          16 epochs  1         4      12",
        "2        4       4        16 epochs  4         4      4",
        "all trials: about 160 epochs, at least 124, at most 256",
    ]
    shown = json.loads(cli("preview-search", str(config), "--json").out)
    assert shown["brackets"][0]["rungs"][1] == {"length": 16, "min_trials": 1, "expected_trials": 4, "max_trials": 12}


def test_seed_of_the_preview_goes_into_the_experiment(cli: Cli, code: Path, gateway: StandInGateway) -> None:
    ran = cli("experiment", "create", str(code / "const.yaml"), "--seed", "7")
    assert ran.status == 0, ran.err
    assert json.loads(gateway.requests[-1].config_json)["reproducibility"]["experiment_seed"] == 7


def test_two_seeds_are_refused(cli: Cli, code: Path) -> None:
    config = code / "const.yaml"
    config.write_text(config.read_text() + "reproducibility: {experiment_seed: 5}\n")
    for command in (["experiment", "create"], ["preview-search"]):
        ran = cli(*command, str(config), "--seed", "7")
        assert (ran.status, ran.err) == (
            2,
            "error: the seed is 7, but the configuration sets reproducibility.experiment_seed to 5; "
            "leave one of them out\n",
        )
    assert cli("experiment", "create", str(config), "--seed", "5").status == 0
