"""When training reports, and what of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gangline import pytorch
from gangline.core.train import TrainContext
from gangline.pytorch.metrics.metric import Averaging, Totals
from gangline.pytorch.training.schedule import Pace
from tests.support.small_trial import SmallTrial, fit


class _Numbered(SmallTrial):
    """Its metric is the number of the batch."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        super().train_batch(batch, epoch_idx, batch_idx)
        return {"number": batch_idx}


class _Looking(_Numbered):
    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"look": _Callback()}


class _Callback(pytorch.PyTorchCallback):
    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        assert avg_metrics["number"] == sum(metrics["number"] for metrics in batch_metrics) / len(batch_metrics)


class _Reducing(_Numbered):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.wrap_reducer(lambda _values: 0.0, name="nothing")


@pytest.mark.parametrize(
    ("trial_class", "init", "at"),
    [
        # Before a validation and at the end it does not wait.
        (_Numbered, {}, [3, 5, 6, 9, 10]),
        (_Looking, {}, [2, 4, 6, 8, 10]),
        (_Reducing, {}, [2, 4, 6, 8, 10]),
        (_Numbered, {"exp_conf": {"profiling": {"enabled": True}}}, [2, 4, 6, 8, 10]),
    ],
)
def test_report_is_of_its_batches_also_where_it_waits_for_the_next_one(
    trial_class: type[SmallTrial], init: dict[str, Any], at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    trials: list[SmallTrial] = []
    reports: list[tuple[int, int, float]] = []

    def make(context: pytorch.PyTorchTrialContext) -> SmallTrial:
        trials.append(trial_class(context))
        return trials[0]

    def report(_self: TrainContext, steps_completed: int, metrics: dict[str, float]) -> None:
        reports.append((trials[0].context.current_train_batch(), steps_completed, metrics["number"]))

    # However long a batch takes on a busy machine: it counts as short.
    monkeypatch.setattr(Pace, "suggest", lambda pace, _batches, _seconds: 2 * pace.distance)
    monkeypatch.setattr(TrainContext, "report_training_metrics", report)
    fit(
        make,
        max_length=pytorch.Batch(10),
        reporting_period=pytorch.Batch(2),
        validation_period=pytorch.Batch(6),
        init=init,
    )
    assert reports == [(at[0], 2, 0.5), (at[1], 4, 2.5), (at[2], 6, 4.5), (at[3], 8, 6.5), (at[4], 10, 8.5)]


def test_validation_before_the_first_batch_reports_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[int] = []
    monkeypatch.setattr(TrainContext, "report_training_metrics", lambda _self, steps, _metrics: reported.append(steps))
    fit(_Reducing, max_length=pytorch.Batch(4), reporting_period=pytorch.Batch(3), step_zero_validation=True)
    assert reported == [3, 4]


@pytest.mark.parametrize("is_joint", [True, False])
def test_numbers_of_other_ranks_are_asked_for_only_where_metrics_are_averaged(
    is_joint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals: list[object] = []
    average_later = Averaging.average_later

    def note(averaging: Averaging, own: Totals) -> Callable[[], dict[str, float]]:
        totals.append(own)
        return average_later(averaging, own)

    monkeypatch.setattr(Averaging, "average_later", note)
    config = {"optimizations": {"average_training_metrics": is_joint}}
    fit(_Numbered, max_length=pytorch.Batch(4), reporting_period=pytorch.Batch(2), init={"exp_conf": config})
    assert len(totals) == (2 if is_joint else 0)
