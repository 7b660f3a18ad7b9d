"""`determined.experimental.client` over a stand-in gateway: Determined's names and meanings, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.determined.sdk import experimental_client as det
from gangline.domain.id import number_of, trial_id_of
from gangline.errors import GanglineError
from gangline.lacking import NotInGangline
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import ingest_pb2, types_pb2
from tests.support.source import ROOT
from tests.support.stand_in_gateway import TOKEN, StandInGateway
from tests.support.view import make_checkpoint, make_experiment, make_lifecycle, make_log

CONFIG = {"entrypoint": "model_def:Digits", "searcher": {"name": "single", "metric": "loss", "max_length": 10}}
SEARCHER = (
    '{"searcher": {"metric": "accuracy", "smaller_is_better": false}, "labels": ["mine"], "description": "small"}'
)


@pytest.fixture(autouse=True)
def logged_in(gateway: StandInGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GANGLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(det, "_clients", [])
    gateway.experiments[1] = make_experiment(config_json=SEARCHER)
    gateway.views[1] = make_lifecycle()
    for view in gateway.views[1]:
        view.experiment.config_json = SEARCHER
    gateway.checkpoints = [
        make_checkpoint("a", batches=100, accuracy=0.8),
        make_checkpoint("b", batches=200, accuracy=0.9),
        make_checkpoint("c", "1.2", batches=50, accuracy=0.7),
        make_checkpoint("d", batches=300),
    ]
    det.login(master=gateway.address, user="alice", password=TOKEN)
    yield
    det._clients[0]._client.close()


def test_experiment_is_created_and_followed(gateway: StandInGateway, code: Path) -> None:
    gateway.experiments.clear()
    experiment = det.create_experiment(config=CONFIG, model_dir=str(code))
    assert (experiment.id, experiment.state) == (1, det.ExperimentState.QUEUED)
    assert experiment.wait(interval=1) is det.ExperimentState.COMPLETED
    assert repr(experiment) == "Experiment(id=1)"


def test_configuration_may_be_a_file(gateway: StandInGateway, code: Path) -> None:
    gateway.experiments.clear()
    (code / "const").write_text(str(CONFIG))
    assert det.create_experiment(str(code / "const"), code).id == 1


def test_waiting_for_a_paused_experiment_is_an_error(gateway: StandInGateway) -> None:
    gateway.views[1][1].experiment.state = types_pb2.STATE_PAUSED
    with pytest.raises(ValueError, match="is in paused state"):
        det.get_experiment(1).wait()


def test_checkpoints_are_sorted_as_in_determined() -> None:
    experiment = det.get_experiment(1)
    assert [c.uuid for c in experiment.list_checkpoints()] == ["b", "a", "c", "d"]
    assert [c.uuid for c in experiment.list_checkpoints(max_results=1)] == ["b"]
    by_batch = experiment.list_checkpoints(det.CheckpointSortBy.BATCH_NUMBER, det.OrderBy.DESC)
    assert [c.uuid for c in by_batch] == ["d", "b", "a", "c"]
    assert [c.uuid for c in experiment.list_checkpoints("accuracy", det.OrderBy.ASCENDING)] == ["c", "a", "b", "d"]
    # The best ones of different trials.
    assert [c.uuid for c in experiment.top_n_checkpoints(5)] == ["b", "c"]
    assert experiment.top_checkpoint("accuracy", smaller_is_better=True).uuid == "c"


def test_trial_is_a_number(gateway: StandInGateway) -> None:
    gateway.logs = [make_log(number, f"line {number}") for number in range(1, 5)]
    point = ingest_pb2.MetricsPoint(
        group="validation", batches_completed=10, metrics={"accuracy": 0.5}, values_json='{"note": "a"}'
    )
    gateway.metrics = [pb.StoredMetrics(id=1, trial_id="1.1", at=1000.0, point=point)]
    trial = det.get_trial(100001)
    assert (trial.id, trial.trial_id, trial.experiment_id, trial.state) == (100001, 100001, 1, det.TrialState.COMPLETED)
    assert [each.id for each in det.get_experiment(1).get_trials()] == [100001]
    assert det.get_experiment(1).await_first_trial().id == 100001
    assert list(trial.logs(head=2)) == ["line 1", "line 2"]
    assert list(trial.logs(tail=1, stdtypes=["stdout"])) == ["line 4"]
    list(trial.logs(search_text="a.b", min_level=det.LogLevel.ERROR, timestamp_after="1970-01-01T00:00:05+00:00"))
    assert gateway.log_requests[-1].filter.pattern == r"a\.b"
    assert gateway.log_requests[-1].filter.since == 5.0
    [entry] = det.iter_trials_metrics([100001], "validation")
    assert (entry.trial_id, entry.steps_completed, entry.metrics) == (100001, 10, {"accuracy": 0.5, "note": "a"})
    assert trial.select_checkpoint(latest=True).uuid == "d"
    assert trial.select_checkpoint(best=True).uuid == "b"
    assert trial.select_checkpoint(uuid="a").uuid == "a"
    trial.kill()
    assert trial.state is det.TrialState.CANCELED


@pytest.mark.parametrize(("number", "trial_id"), [(700001, "7.1"), (710000, "7.10000")])
def test_numbers_of_trials_go_back_and_forth(number: int, trial_id: str) -> None:
    assert (number_of(trial_id), trial_id_of(number)) == (number, trial_id)


def test_checkpoint_is_downloaded_once(
    gateway: StandInGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gateway.files = {"model.pt": b"0123456789", "metadata.json": b"{}"}
    checkpoint = det.get_checkpoint("a")
    assert checkpoint.download() == checkpoint.download() == "checkpoints/a"
    assert (tmp_path / "checkpoints/a/model.pt").exists()
    assert gateway.calls.count("DownloadCheckpoint") == 1
    assert checkpoint.training.trial_id == 100001
    assert checkpoint.training.validation_metrics["avgMetrics"] == {"accuracy": 0.8}
    checkpoint.delete()
    checkpoint.reload()
    assert checkpoint.state is det.CheckpointState.DELETED


def test_experiments_are_filtered_and_sorted(gateway: StandInGateway) -> None:
    gateway.experiments[2] = make_experiment("TERMINAL", "FAILED", id=2, name="other", owner="bob")
    gateway.experiments[3] = make_experiment(id=3, archived=True)
    assert [each.id for each in det.list_experiments()] == [1, 2, 3]
    assert [each.id for each in det.list_experiments(order_by=det.OrderBy.DESC)] == [3, 2, 1]
    assert [each.id for each in det.list_experiments(users=["bob"])] == [2]
    assert [each.id for each in det.list_experiments(states=[det.ExperimentState.ERROR])] == [2]
    assert [each.id for each in det.list_experiments(labels=["mine"])] == [1]
    assert [each.id for each in det.list_experiments(name="oth", experiment_ids=[2, 3])] == [2]


def test_lacking_names_and_arguments_say_so(code: Path) -> None:
    for owner, name in ((det.Determined, "get_model"), (det.get_experiment(1), "set_name")):
        with pytest.raises(NotInGangline, match=r"is not part of Gangline; docs/from-determined\.md says"):
            getattr(owner, name)
    with pytest.raises(GanglineError) as caught:
        det.create_experiment(CONFIG, code, template="big")
    assert caught.value.message == (
        "template of create_experiment is not part of Gangline; leave it out; see docs/from-determined.md"
    )
    with pytest.raises(GanglineError, match=r"times 100000, plus its own, as 700001 for trial 7\.1"):
        det.get_trial(7)
    with pytest.raises(GanglineError, match="which is a URL; write host:port"):
        det.login("http://gpu1:8080", "alice", "secret")


def test_program_of_determined_runs_without_a_login_call(gateway: StandInGateway, tmp_path: Path) -> None:
    program = (
        "from gangline import alias; alias.install()\n"
        "from determined.experimental import Determined, client\n"
        "print(client.get_experiment(1).wait().name, Determined().get_experiment(1).id)\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GANGLINE_GATEWAY": gateway.address,
        "GANGLINE_TOKEN": TOKEN,
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "COMPLETED 1\n", done.stderr
