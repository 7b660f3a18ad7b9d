"""Reports of a script, on the cluster and off it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gangline import core
from gangline.cluster_info import ClusterInfo, TrialInfo
from gangline.core import (
    DistributedContext,
    EarlyExitReason,
    PreemptContext,
    PreemptMode,
    TensorboardMode,
    TrainContext,
)
from gangline.core.link import Link
from gangline.core.tensorboard import TensorboardFolder
from gangline.domain.history import MetricsPoint
from gangline.domain.state import ExitKind
from gangline.errors import GanglineError, InvalidHP, unavailable
from gangline.launch.failure import describe
from tests.support.world import in_ranks


def _train(link: Link, distributed: DistributedContext | None = None) -> TrainContext:
    distributed = distributed or DistributedContext()
    folder = TensorboardFolder("memory://storage", "", distributed.rank, TensorboardMode.MANUAL)
    return TrainContext(distributed, link, None, folder)


def test_off_the_cluster_metrics_go_to_stdout_and_checkpoints_to_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with core.init() as context:
        context.train.report_training_metrics(10, {"loss": 0.25})
        context.train.report_progress(0.5)
        assert not context.preempt.should_preempt()
        with context.checkpoint.store_path({"steps_completed": 10}) as (path, storage_id):
            (path / "weights").write_text("w")
    assert capsys.readouterr().out.split() == ["training", "batch", "10", "loss", "0.25"]
    assert (tmp_path / "checkpoints" / storage_id / "weights").read_text() == "w"
    assert context.info is None


def test_batch_metrics_are_taken_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    train = _train(Link())
    for steps in (1, 2):
        train.report_training_metrics(steps_completed=steps, metrics={"loss": 1.0}, batch_metrics=[{"loss": 2.0}])
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith("report_training_metrics: batch_metrics are not recorded")


class _SentLink(Link):
    """Keeps what was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[Mapping[str, float], str]] = []

    def send_metrics(self, point: MetricsPoint, *, units: float | None = None, at: float | None = None) -> None:
        self.sent.append((point.metrics, point.values_json))


def test_texts_lists_and_mappings_are_reported_beside_numbers() -> None:
    link = _SentLink()
    _train(link).report_validation_metrics(1, {"accuracy": 1, "note": "1.5", "by_class": [0.5, 1], "at": {"k": None}})
    [(numbers, values_json)] = link.sent
    assert numbers == {"accuracy": 1.0}
    assert json.loads(values_json) == {"note": "1.5", "by_class": [0.5, 1], "at": {"k": None}}


def test_tensors_and_arrays_are_numbers_or_lists() -> None:
    link = _SentLink()
    metrics = {"one": torch.tensor([2.0]), "many": torch.ones(2, 1), "np": np.arange(3), "half": np.float16(0.5)}
    _train(link).report_metrics("mine", 1, metrics)
    [(numbers, values_json)] = link.sent
    assert numbers == {"one": 2.0, "half": 0.5}
    assert json.loads(values_json) == {"many": [[1.0], [1.0]], "np": [0, 1, 2]}


def test_a_value_that_cannot_be_recorded_costs_one_warning_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    link = _SentLink()
    train = _train(link)
    bad = {"raw": b"1.5", "huge": "x" * 70_000, "number": 10**400, "array": np.zeros(10**6)}
    with caplog.at_level(logging.WARNING, "gangline"):
        for steps in (1, 2):
            train.report_training_metrics(steps, {"loss": 1.0, **bad, "note": "fine"})
    assert link.sent == [({"loss": 1.0}, f'{{"number": {10**400}, "note": "fine"}}')] * 2
    assert sorted(caplog.messages) == [
        "metric array is larger than 64 KiB as JSON; it is not recorded",
        "metric huge is larger than 64 KiB as JSON; it is not recorded",
        "metric raw is a bytes, which JSON cannot hold; it is not recorded",
    ]


@pytest.mark.parametrize("value", ["low", [0.5], {"mean": 0.5}])
def test_the_searchers_metric_has_to_be_a_number(cluster: ClusterInfo, value: object) -> None:
    link = _SentLink()
    with pytest.raises(GanglineError) as caught:
        _on_cluster(cluster, link).report_validation_metrics(7, {"error": value, "loss": 1.0})
    assert caught.value.code == "core.searcher_metric"
    assert caught.value.message.startswith(f"searcher.metric error is a {type(value).__name__} at batch 7")
    # The report has been sent, and nothing is checked where it decides nothing.
    assert link.sent[0][0] == {"loss": 1.0}
    _on_cluster(cluster, link).report_training_metrics(7, {"error": value})


def test_checkpoints_carry_the_newest_validation_up_to_their_steps(tmp_path: Path) -> None:
    with core.init(checkpoint_storage=str(tmp_path)) as context:

        def metrics_at(steps: int, **metadata: object) -> object:
            with context.checkpoint.store_path({"steps_completed": steps, **metadata}) as (path, storage_id):
                (path / "weights").write_text("w")
            return context.checkpoint.get_metadata(storage_id).get("validation_metrics")

        assert metrics_at(1) is None
        context.train.report_validation_metrics(10, {"loss": 0.5, "note": "no number", "ratio": float("nan")})
        context.train.report_training_metrics(12, {"loss": 9.0})
        context.train.report_validation_metrics(20, {"loss": 0.25})
        assert metrics_at(9) is None
        assert metrics_at(10) == {"loss": 0.5}
        assert metrics_at(19) == {"loss": 0.5}
        assert metrics_at(21) == {"loss": 0.25}
        assert metrics_at(21, validation_metrics={"loss": 7}) == {"loss": 7}


def test_progress_is_a_share() -> None:
    with pytest.raises(GanglineError, match="between 0 and 1"):
        _train(Link()).report_progress(50)


class _KeepingLink(Link):
    is_stopping = False

    def send_stopping(self) -> None:
        self.is_stopping = True


class _AskedLink(_KeepingLink):
    @property
    def preemption(self) -> str | None:
        return "drain"


def test_workers_get_the_answer_of_the_chief() -> None:
    def work(distributed: DistributedContext) -> tuple[bool, bool]:
        link = _AskedLink() if distributed.is_chief else _KeepingLink()
        return PreemptContext(distributed, link).should_preempt(), link.is_stopping

    assert in_ranks(2, work) == [(True, True), (True, True)]


def test_every_rank_may_ask_for_itself() -> None:
    def work(distributed: DistributedContext) -> bool:
        link = _AskedLink() if distributed.rank == 1 else Link()
        return PreemptContext(distributed, link, PreemptMode.WorkersAskMaster).should_preempt(auto_ack=False)

    assert in_ranks(2, work) == [False, True]


def test_only_the_chief_may_ask_or_report() -> None:
    def work(distributed: DistributedContext) -> list[str]:
        if distributed.is_chief:
            return []
        preempt = PreemptContext(distributed, Link(), PreemptMode.ChiefOnly)
        train = _train(Link(), distributed)
        messages = []
        for call in (preempt.should_preempt, lambda: train.report_training_metrics(1, {})):
            with pytest.raises(GanglineError) as caught:
                call()
            messages.append(caught.value.code)
        return messages

    assert in_ranks(2, work)[1] == ["core.chief_only", "core.chief_only"]


def test_unacknowledged_preemption_does_not_count() -> None:
    link = _AskedLink()
    preempt = PreemptContext(DistributedContext(), link)
    assert preempt.should_preempt(auto_ack=False)
    assert not link.is_stopping
    preempt.acknowledge_preemption_signal()
    assert link.is_stopping


def test_early_exit_has_its_reasons() -> None:
    train = _train(Link())
    train.report_early_exit(EarlyExitReason.USER_REQUESTED_STOP)
    with pytest.raises(InvalidHP) as caught:
        train.report_early_exit(EarlyExitReason.INVALID_HP)
    assert caught.value.code == "trial.invalid_hp"
    # A trial that fails so is not tried again.
    assert describe(caught.value).kind is ExitKind.INVALID_HP


def test_what_determined_has_beyond_is_named() -> None:
    train = _train(Link())
    assert not hasattr(train, "report_metadata")
    with pytest.raises(
        AttributeError, match=r"TrainContext\.report_metadata is not part of Gangline; docs/from-determined"
    ):
        train.report_metadata()
    with pytest.raises(AttributeError, match="'TrainContext' object has no attribute 'get_metadat'"):
        train.get_metadat()


def test_metadata_are_kept_off_the_cluster_too() -> None:
    train = _train(Link())
    assert train.get_metadata() is None
    assert train.get_experiment_best_validation() is None
    metadata: dict[Any, Any] = {"tags": ("a", 1), 2: np.float32(0.5)}
    assert train.set_metadata(metadata) == train.get_metadata() == {"tags": ["a", 1], "2": 0.5}
    assert train.set_metadata({}) == train.get_metadata() == {}


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ([1], "the metadata of a trial are a list; give a dictionary"),
        ({"a": {1, 2}}, "the metadata of a trial: a is a set, which JSON cannot hold; give plain data"),
        ({"a": "x" * 17_000}, "the metadata of a trial have 17009 bytes as JSON, at most 16384 are kept"),
    ],
)
def test_metadata_that_cannot_be_kept_are_refused(metadata: Any, told: str) -> None:
    train = _train(Link())
    train.set_metadata({"earlier": 1})
    with pytest.raises(GanglineError) as caught:
        train.set_metadata(metadata)
    assert caught.value.code == "core.metadata"
    assert caught.value.message.startswith(told)
    assert train.get_metadata() == {"earlier": 1}


@pytest.fixture
def cluster() -> ClusterInfo:
    trial = TrialInfo("1.1", 1, 0, {}, {"searcher": {"metric": "error"}})
    return ClusterInfo("c", "1.1.1", 1, "a1", 0, 1, ["a1/0"], "memory://storage", "/code", trial)


def _on_cluster(cluster: ClusterInfo, link: Link | None = None) -> TrainContext:
    folder = TensorboardFolder("memory://storage", "", 0, TensorboardMode.MANUAL)
    return TrainContext(DistributedContext(), link or Link(), cluster, folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_metric_that_the_searcher_cannot_compare_ends_the_trial(cluster: ClusterInfo, value: float) -> None:
    with pytest.raises(GanglineError) as caught:
        _on_cluster(cluster).report_validation_metrics(7, {"error": value, "loss": 1.0})
    assert caught.value.message.startswith(f"searcher.metric error is {value} at batch 7")
    assert describe(caught.value).kind is ExitKind.NONFINITE_METRIC


def test_it_may_be_ignored(cluster: ClusterInfo) -> None:
    cluster.trial.config["optimizations"] = {"nonfinite_loss": "ignore"}
    _on_cluster(cluster).report_validation_metrics(7, {"error": float("nan")})


def test_any_other_metric_is_warned_of_once(cluster: ClusterInfo, caplog: pytest.LogCaptureFixture) -> None:
    train = _on_cluster(cluster)
    with caplog.at_level(logging.WARNING, "gangline"):
        for batch in (5, 6):
            train.report_training_metrics(batch, {"loss": float("nan"), "error": 1.0})
    assert caplog.messages == ["metric loss is nan at batch 5"]


class _DecidedLink(_KeepingLink):
    """Counts the questions at rungs, and refuses to answer where asked to."""

    num_questions = 0
    is_away = False

    def find_trial(self) -> Any:
        self.num_questions += 1
        if self.is_away:
            raise unavailable("core.no_answer", "no scheduler has answered for 10 s")
        return super().find_trial()


ASHA = {"name": "async_halving", "metric": "error", "max_trials": 4, "num_rungs": 2, "max_length": {"batches": 16}}


def test_a_validation_waits_for_the_searcher_at_its_rungs_only(cluster: ClusterInfo) -> None:
    cluster.trial.config["searcher"] = ASHA
    link = _DecidedLink()
    train = _on_cluster(cluster, link)
    asked = []
    for batch in range(1, 33):
        before = link.num_questions
        train.report_validation_metrics(batch, {"error": 0.5})
        asked += [batch] if link.num_questions > before else []
    assert asked == [4, 16]
    again = _on_cluster(cluster, link)
    again.report_trainers_validation(20, {"error": 0.5})
    assert link.num_questions == 2


def test_training_goes_on_without_a_decision(cluster: ClusterInfo, caplog: pytest.LogCaptureFixture) -> None:
    cluster.trial.config["searcher"] = ASHA
    link = _DecidedLink()
    link.is_away = True
    train = _on_cluster(cluster, link)
    with caplog.at_level(logging.WARNING, "gangline"):
        train.report_validation_metrics(4, {"error": 0.5})
        train.report_validation_metrics(5, {"error": 0.5})
    assert link.num_questions == 1
    assert caplog.messages == ["training goes on without the searcher's decision: no scheduler has answered for 10 s"]


def test_other_searches_and_units_that_are_not_known_wait_for_nothing(cluster: ClusterInfo) -> None:
    link = _DecidedLink()
    _on_cluster(cluster, link).report_validation_metrics(100, {"error": 0.5})
    in_epochs = {**cluster.trial.config, "searcher": {**ASHA, "max_length": {"epochs": 16}}}
    cluster = replace(cluster, trial=replace(cluster.trial, config=in_epochs))
    train = _on_cluster(cluster, link)
    train.report_validation_metrics(100, {"error": 0.5})
    assert link.num_questions == 0
    train.note_units(4)
    train.report_validation_metrics(100, {"error": 0.5})
    train.report_validation_metrics(200, {"error": 0.5, "epochs": 16})
    assert link.num_questions == 2
