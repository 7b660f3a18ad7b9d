"""The objects of the SDK, over a stand-in gateway; and lists that are read page by page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gangline import Client
from gangline.client import Experiment
from gangline.domain.state import Availability, CheckpointState, Outcome, State
from gangline.errors import ErrorKind, GanglineError
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import ingest_pb2, types_pb2
from tests.support.stand_in_gateway import StandInGateway
from tests.support.view import make_agent_view, make_checkpoint, make_experiment, make_lifecycle, make_log, make_trial

CONFIG = "entrypoint: model_def:Digits\nsearcher: {name: single, metric: loss, max_length: 10}\n"
SEARCHER = json.dumps({"searcher": {"metric": "accuracy", "smaller_is_better": False}})


@pytest.fixture
def experiment(client: Client, gateway: StandInGateway) -> Experiment:
    gateway.experiments[1] = make_experiment(config_json=SEARCHER)
    gateway.views[1] = make_lifecycle()
    for view in gateway.views[1]:
        view.experiment.config_json = SEARCHER
    gateway.checkpoints = [
        make_checkpoint("a", batches=100, accuracy=0.8, loss=0.3),
        make_checkpoint("b", batches=200, accuracy=0.9, loss=0.4),
        make_checkpoint("c", "1.2", batches=50, accuracy=0.95),
        make_checkpoint("d", batches=300),
        make_checkpoint("e", "2.1", batches=9, accuracy=1.0),
    ]
    return client.experiment(1)


@pytest.mark.parametrize("knows_filters", [True, False], ids=["of now", "older"])
def test_one_checkpoint_is_asked_for_alone(
    client: Client, gateway: StandInGateway, experiment: Experiment, knows_filters: bool
) -> None:
    gateway.knows_filters = knows_filters
    assert client.checkpoint("c").id == "c"
    assert [request.checkpoint_id for request in gateway.checkpoint_requests] == ["c"]
    for wrong, code in (("", "checkpoint.id"), ("x/y", "checkpoint.id"), ("zz", "checkpoint.not_found")):
        with pytest.raises(GanglineError) as caught:
            client.checkpoint(wrong)
        assert caught.value.code == code


@pytest.mark.parametrize("form", ["text", "mapping", "file", "name", "file alone"])
def test_configuration_comes_in_any_form(client: Client, gateway: StandInGateway, code: Path, form: str) -> None:
    file = code / "exp.yaml"
    file.write_text(CONFIG)
    mapping = {"entrypoint": "model_def:Digits", "searcher": {"name": "single", "metric": "loss", "max_length": 10}}
    config = {"text": CONFIG, "mapping": mapping, "file": file, "name": str(file), "file alone": file}[form]
    experiment = client.create_experiment(config, None if form == "file alone" else str(code))  # type: ignore[arg-type]  # a union of the forms
    assert (experiment.id, experiment.name, experiment.state) == (1, "digits", State.QUEUED)
    assert experiment.experiment is experiment.record
    assert experiment.config["searcher"]["metric"] == "loss"
    assert repr(experiment) == "Experiment(1, 'digits', QUEUED)"


@pytest.mark.parametrize(
    ("config", "code", "words"),
    [
        ("missing.yaml", ".", "cannot read missing.yaml: there is no such file; give the YAML file"),
        (CONFIG, None, "the code folder is missing; give the folder that holds the trial"),
        ({"name": {1, 2}}, ".", "the configuration has a value that YAML has not"),
    ],
)
def test_mistakes_are_one_line_and_reach_no_gateway(
    client: Client, gateway: StandInGateway, config: object, code: str | None, words: str
) -> None:
    with pytest.raises(GanglineError, match="^" + words) as caught:
        client.create_experiment(config, code)  # type: ignore[arg-type]  # a mistake on purpose
    assert (caught.value.kind, gateway.calls) == (ErrorKind.INVALID, [])


def test_warnings_of_a_creation_are_kept(client: Client, gateway: StandInGateway, code: Path) -> None:
    gateway.warnings = ["bind_mounts has no effect"]
    assert client.create_experiment(CONFIG, code).warnings == ("bind_mounts has no effect",)


def test_waiting_shows_each_change_and_keeps_the_last_record(client: Client, gateway: StandInGateway) -> None:
    gateway.experiments[1] = make_experiment("QUEUED")
    experiment = client.experiment(1)
    gateway.views[1] = make_lifecycle()
    states = []
    assert experiment.wait(timeout=20, on_progress=lambda view: states.append(view.experiment.state)) == "COMPLETED"
    assert states == [State.QUEUED, State.RUNNING, State.TERMINAL]
    assert (experiment.outcome, experiment.record.ended_at) == (Outcome.COMPLETED, 1012.5)


def test_waiting_gives_up_after_its_time(client: Client, gateway: StandInGateway) -> None:
    gateway.experiments[1] = make_experiment()
    with pytest.raises(GanglineError) as caught:
        client.experiment(1).wait(timeout=0.2)
    assert caught.value.code == "experiment.wait_timeout"


def test_changes_replace_the_record(client: Client, gateway: StandInGateway) -> None:
    gateway.experiments[1] = make_experiment(config_json='{"resources": {}}')
    gateway.experiments[2] = make_experiment(id=2)
    experiment = client.experiment(1)
    experiment.pause()
    assert experiment.state == "PAUSED"
    experiment.activate()
    assert experiment.state == "QUEUED"
    experiment.update(priority=7, max_slots=3)
    assert experiment.config["resources"]["priority"] == 7
    experiment.move(ahead_of=2)
    experiment.cancel()
    assert experiment.state == "STOPPING"
    experiment.kill()
    assert (experiment.state, experiment.outcome) == (State.TERMINAL, Outcome.CANCELED)
    experiment.archive()
    were_archived = [experiment.record.archived]
    experiment.unarchive()
    assert [*were_archived, experiment.record.archived] == [True, False]
    experiment.delete()
    # Once more finds it gone.
    experiment.delete()
    assert gateway.deleted_ids == [1]
    assert len({update.request_id for update in gateway.updates}) == len(gateway.updates) == 5


def test_best_checkpoints_are_those_of_the_searchers_metric(experiment: Experiment) -> None:
    assert [checkpoint.id for checkpoint in experiment.checkpoints()] == ["a", "b", "c", "d"]
    assert [checkpoint.id for checkpoint in experiment.top_n_checkpoints(2)] == ["c", "b"]
    assert [c.id for c in experiment.top_n_checkpoints(9, sort_by="loss", smaller_is_better=True)] == ["a", "b"]
    best = experiment.top_checkpoint()
    assert (best.id, best.validation_metrics, best.metadata["steps_completed"]) == ("c", {"accuracy": 0.95}, 50)
    with pytest.raises(GanglineError) as caught:
        experiment.top_checkpoint(sort_by="f1", smaller_is_better=False)
    assert (caught.value.code, caught.value.message) == (
        "checkpoint.none",
        "experiment 1 has no checkpoint with a value of f1",
    )


def test_trial_has_its_own_part(client: Client, gateway: StandInGateway, experiment: Experiment) -> None:
    gateway.views[1][-1].trials[0].trial.hyperparameters_json = '{"lr": 0.1}'
    gateway.logs = [make_log(1, "one")]
    gateway.metrics = [_metric(1, "1.1", 10), _metric(2, "1.2", 10)]
    trial = client.trial("1.1")
    assert [trial.id, *(each.id for each in experiment.trials())] == ["1.1", "1.1"]
    assert (trial.experiment_id, trial.hyperparameters, trial.experiment().id) == (1, {"lr": 0.1}, 1)
    assert [entry.text for entry in trial.logs(tail=5, level="info")] == ["one"]
    assert [c.id for c in trial.checkpoints()] == ["a", "b", "d"]
    assert trial.top_checkpoint().id == "b"
    assert trial.profile(3).batches == 3
    trial.kill()
    assert trial.outcome is Outcome.CANCELED
    with pytest.raises(GanglineError) as caught:
        client.trial("1.9")
    assert caught.value.message == "there is no trial 1.9; list them with: gangline experiment trials 1"


def test_checkpoint_is_found_downloaded_and_deleted(
    client: Client, gateway: StandInGateway, experiment: Experiment, tmp_path: Path
) -> None:
    gateway.files = {"model.pt": b"0123456789", "metadata.json": b"{}"}
    checkpoint = client.checkpoint("b")
    assert (checkpoint.trial_id, checkpoint.experiment_id, checkpoint.files) == ("1.1", 1, {"model.pt": 10})
    assert checkpoint.trial().id == "1.1"
    assert (checkpoint.download(str(tmp_path / "b")) / "model.pt").read_bytes() == b"0123456789"
    checkpoint.delete()
    assert checkpoint.state is CheckpointState.DELETING
    with pytest.raises(GanglineError) as caught:
        client.checkpoint("z")
    assert caught.value.code == "checkpoint.not_found"


def test_metrics_are_a_stream_or_a_table(gateway: StandInGateway, experiment: Experiment) -> None:
    pytest.importorskip("pandas")
    gateway.metrics = [_metric(1, "1.1", 10), _metric(2, "1.1", 20)]
    gateway.break_after = 1
    metrics = experiment.metrics("validation")
    assert next(metrics).point.metrics == {"accuracy": 0.1}
    assert metrics.to_pandas()["accuracy"].tolist() == [0.2]
    assert experiment.metrics().to_pandas()["batches_completed"].tolist() == [10, 20]


def test_agents_and_jobs_are_objects(client: Client, gateway: StandInGateway, experiment: Experiment) -> None:
    gateway.agents = [make_agent_view()]
    gateway.tasks = [pb.Task(trial=make_trial(), experiment_name="digits")]
    [agent] = client.agents()
    assert (agent.id, agent.state, agent.allocations) == ("a1", "ALIVE", {"a1/0": "1.1.1"})
    agent.drain()
    assert agent.availability is Availability.DRAINING
    agent.disable(["a1/0"])
    agent.enable()
    assert [request.availability for request in gateway.agent_updates] == [
        types_pb2.AVAILABILITY_DRAINING,
        types_pb2.AVAILABILITY_DISABLED,
        types_pb2.AVAILABILITY_ENABLED,
    ]
    [job] = client.jobs()
    assert (job.id, job.trial().id, job.experiment().id) == ("1.1", "1.1", 1)


def test_thousand_experiments_are_listed_page_by_page(client: Client, gateway: StandInGateway) -> None:
    for number in range(1, 1001):
        gateway.experiments[number] = make_experiment(id=number, archived=number % 10 == 0)
    listed = client.experiments(archived=None)
    assert gateway.calls == []
    assert [next(listed).id for _ in range(100)] == list(range(1000, 900, -1))
    assert gateway.calls == ["ListExperiments"]
    # Later experiments change nothing, and those that go leave no gap.
    gateway.experiments[1001] = make_experiment(id=1001)
    del gateway.experiments[850]
    assert [each.id for each in listed] == [number for number in range(900, 0, -1) if number != 850]
    assert len(gateway.calls) == 10
    assert len(list(client.experiments())) == 901
    assert [each.id for each in client.experiments(before_id=31, archived=True)] == [30, 20, 10]


def test_list_goes_on_over_an_outage(client: Client, gateway: StandInGateway) -> None:
    for number in range(1, 251):
        gateway.experiments[number] = make_experiment(id=number)
    listed = client.experiments()
    first = [next(listed).id for _ in range(100)]
    address = gateway.address
    gateway.stop()
    gateway.start(address)
    assert first + [each.id for each in listed] == list(range(250, 0, -1))


def _metric(number: int, trial_id: str, batches: int) -> pb.StoredMetrics:
    point = ingest_pb2.MetricsPoint(group="validation", batches_completed=batches, metrics={"accuracy": batches / 100})
    return pb.StoredMetrics(id=number, trial_id=trial_id, at=1000.0, point=point)
