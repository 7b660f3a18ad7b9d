"""When training reports, and what of."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import torch

import gangline.core
from gangline import pytorch
from gangline.core import DistributedContext
from gangline.core.train import TrainContext
from gangline.pytorch.parallel import Replica
from gangline.pytorch.parallel.choice import SingleStrategy
from gangline.pytorch.training.metric_report import MOST_TOGETHER, TrainingReports
from gangline.pytorch.training.schedule import Pace
from gangline.pytorch.trial.setting import make_setting
from tests.support.small_trial import SmallTrial, fit
from tests.support.world import in_ranks


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

    def report(_self: TrainContext, steps_completed: int, metrics: dict[str, float], _at: float) -> None:
        reports.append((trials[0].context.current_train_batch(), steps_completed, metrics["number"]))

    # However long a batch takes on a busy machine: it counts as short.
    monkeypatch.setattr(Pace, "suggest", lambda pace, _batches, _seconds: 2 * pace.distance)
    monkeypatch.setattr(TrainContext, "report_trainers_metrics", report)
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
    monkeypatch.setattr(TrainContext, "report_trainers_metrics", lambda _self, steps, *_: reported.append(steps))
    fit(_Reducing, max_length=pytorch.Batch(4), reporting_period=pytorch.Batch(3), step_zero_validation=True)
    assert reported == [3, 4]


class _Replicas(SingleStrategy):
    """Each rank is a replica, and no copies are compared, which would be an exchange more now and then."""

    def replica_of(self, rank: int, world_size: int) -> Replica:
        return Replica(rank, world_size)

    def replicated_buffers(self, models: Any) -> tuple[()]:
        return ()


class _Overwriting(_Replicas):
    """A step gives all ranks the values of one."""

    overwrites_copies = True


class _Sent:
    """The reports of one rank, and what the ranks have exchanged for them."""

    def __init__(
        self, distributed: DistributedContext, is_joint: bool = True, strategy: type[SingleStrategy] = _Replicas
    ) -> None:
        core = gangline.core.init(distributed=distributed)
        config = {"optimizations": {"average_training_metrics": is_joint}}
        setting = make_setting(None, {"global_batch_size": 4}, config, 1)
        context = pytorch.PyTorchTrialContext(core, setting, strategy(), torch.device("cpu"), writes_tensorboard=False)
        self.distributed = distributed
        self.sent: list[tuple[int, dict[str, float], float]] = []
        self.checked: list[tuple[tuple[str, float] | None, int]] = []
        keep: Any = lambda batches, metrics, at: self.sent.append((batches, metrics, at))  # noqa: E731  it replaces a method
        core.train.report_trainers_metrics = keep  # type: ignore[method-assign]  # shows what is reported
        profile: Any = None
        check: Any = lambda found, batches: self.checked.append((found, batches))  # noqa: E731  a method's shape
        self.reports = TrainingReports(context, {}, profile, check)
        self.reports.start(0)

    @property
    def num_exchanged(self) -> int:
        return int(self.distributed._transport._round)  # type: ignore[attr-defined]  # what it has exchanged

    def report(self, batches: int, loss: float, *, may_wait: bool = True) -> None:
        self.reports.add({"loss": loss})
        self.reports.begin(batches, may_wait)


def _points(sent: list[tuple[int, dict[str, float], float]]) -> list[tuple[int, float]]:
    return [(batches, metrics["loss"]) for batches, metrics, _ in sent]


def test_reports_that_follow_each_other_soon_are_exchanged_together() -> None:
    def work(distributed: DistributedContext) -> tuple[Any, ...]:
        rank = _Sent(distributed)
        # The ranks agree on names first.
        rank.report(1, 1.0 + distributed.rank, may_wait=False)
        before, begin = rank.num_exchanged, time.time()
        for batches in range(2, 5):
            rank.report(batches, batches + distributed.rank)
            rank.reports.end()
        middle = time.time()
        early = len(rank.sent)
        rank.reports.exchange(4)
        rank.reports.end()
        are_in_time = all(begin <= at <= middle for _, _, at in rank.sent[1:])
        return early, _points(rank.sent), rank.num_exchanged - before, are_in_time

    chief, other = in_ranks(2, work)
    assert chief == (1, [(1, 1.5), (2, 2.5), (3, 3.5), (4, 4.5)], 1, True)
    assert other == (0, [], 1, True)


def test_so_many_reports_are_exchanged_without_waiting_for_more() -> None:
    def work(distributed: DistributedContext) -> list[int]:
        rank, lengths = _Sent(distributed), []
        rank.report(1, 1.0, may_wait=False)
        for batches in range(2, 2 * MOST_TOGETHER + 2):
            rank.report(batches, 0.5)
            rank.reports.end()
            lengths.append(len(rank.sent) - 1)
        return lengths

    lengths, _ = in_ranks(2, work)
    rest = [0] * (MOST_TOGETHER - 1)
    assert lengths == [*rest, MOST_TOGETHER, *(MOST_TOGETHER + each for each in rest), 2 * MOST_TOGETHER]


@pytest.mark.parametrize("ends", ["flush", "check", "begin"])
def test_what_waits_is_sent_before_a_validation_a_checkpoint_and_the_end(ends: str) -> None:
    def work(distributed: DistributedContext) -> list[tuple[int, float]]:
        rank = _Sent(distributed)
        rank.report(1, 1.0)
        rank.report(2, 2.0)
        match ends:
            case "flush":
                rank.reports.flush(3)
            case "check":
                rank.reports.check(3)
            case _:
                rank.report(3, 3.0, may_wait=False)
        return _points(rank.sent)

    chief, _ = in_ranks(2, work)
    assert chief == [(1, 1.0), (2, 2.0), (3, 3.0)][: 3 if ends == "begin" else 2]


def test_a_loss_that_is_not_finite_is_told_with_the_batch_of_its_report() -> None:
    def work(distributed: DistributedContext) -> list[tuple[tuple[str, float] | None, int]]:
        rank = _Sent(distributed)
        rank.report(1, 1.0)
        rank.report(2, math.inf)
        rank.report(3, 1.0)
        rank.reports.flush(3)
        return rank.checked

    assert in_ranks(2, work) == [[(None, 1), (("loss", math.inf), 2), (None, 3)]] * 2


def test_other_names_in_the_middle_are_averaged_as_well() -> None:
    def work(distributed: DistributedContext) -> list[tuple[int, dict[str, float]]]:
        rank = _Sent(distributed)
        rank.report(1, 1.0, may_wait=False)
        rank.report(2, 2.0)
        rank.reports.add({"loss": 1.0, "rare": 4.0 + 2 * distributed.rank})
        rank.reports.begin(3, may_wait=True)
        rank.report(4, 3.0)
        rank.reports.flush(4)
        return [(batches, metrics) for batches, metrics, _ in rank.sent]

    chief, _ = in_ranks(2, work)
    assert chief == [(1, {"loss": 1.0}), (2, {"loss": 2.0}), (3, {"loss": 1.0, "rare": 5.0}), (4, {"loss": 3.0})]


def test_without_averages_nothing_is_exchanged_and_nothing_waits() -> None:
    def work(distributed: DistributedContext) -> tuple[int, list[tuple[int, float]]]:
        rank = _Sent(distributed, is_joint=False)
        before = rank.num_exchanged
        rank.report(1, 1.0 + distributed.rank)
        rank.reports.end()
        return rank.num_exchanged - before, _points(rank.sent)

    assert in_ranks(2, work) == [(0, [(1, 1.0)]), (0, [])]


def test_a_report_does_not_wait_where_the_next_step_would_hide_that_ranks_drift_apart() -> None:
    def work(distributed: DistributedContext) -> list[tuple[int, float]]:
        rank = _Sent(distributed, strategy=_Overwriting)
        rank.report(1, 1.0)
        rank.reports.end()
        return _points(rank.sent)

    chief, _ = in_ranks(2, work)
    assert chief == [(1, 1.0)]


def test_waiting_reports_are_exchanged_when_ranks_ask_each_other_about_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the training loop, at its looks after batches 1 and 4: distances double."""
    exchanged: list[int] = []
    exchange = TrainingReports.exchange

    def note(reports: TrainingReports, batches: int) -> None:
        exchanged.append(batches)
        exchange(reports, batches)

    monkeypatch.setattr(Pace, "suggest", lambda pace, _batches, _seconds: 2 * pace.distance)
    monkeypatch.setattr(TrainingReports, "exchange", note)
    fit(_Numbered, max_length=pytorch.Batch(12), reporting_period=pytorch.Batch(100))
    assert exchanged[:2] == [1, 3]
