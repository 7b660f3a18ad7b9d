"""A strategy in which two ranks form one replica divides data, batches, metrics and seeds by replicas, not by ranks."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest
import torch

import gangline.core
from gangline import pytorch
from gangline.core import DistributedContext
from gangline.domain.settled.record import SettledProfiling
from gangline.pytorch.data import seed
from gangline.pytorch.metrics.metric import Averaging, Reducer
from gangline.pytorch.metrics.reducer import Reducers
from gangline.pytorch.parallel import Replica, choose_strategy
from gangline.pytorch.parallel.choice import SingleStrategy
from gangline.pytorch.profile.clock import StepClock
from gangline.pytorch.profile.profile import SUMMED, open_profile
from gangline.pytorch.profile.trace import Trace
from gangline.pytorch.profile.traffic import Traffic
from gangline.pytorch.training.evaluation import Evaluation
from gangline.pytorch.training.loop import TrainingLoop
from gangline.pytorch.training.metric_report import TrainingReports
from gangline.pytorch.training.schedule import Schedule
from gangline.pytorch.trial.setting import make_setting
from gangline.pytorch.trial.trial import PyTorchTrial
from tests.support.small_trial import DATA, SmallTrial
from tests.support.world import in_ranks

SIZE = 4


class _Pairs(SingleStrategy):
    """Ranks 0 and 1 are one replica, ranks 2 and 3 the other one; the second rank of each has its metrics."""

    def replica_of(self, rank: int, world_size: int) -> Replica:
        return Replica(rank // 2, world_size // 2, is_counted=rank % 2 == 1)


def _context(distributed: DistributedContext, batch_size: int = 6) -> pytorch.PyTorchTrialContext:
    core = gangline.core.init(distributed=distributed)
    setting = make_setting(None, {"global_batch_size": batch_size}, {}, 1)
    return pytorch.PyTorchTrialContext(core, setting, _Pairs(), torch.device("cpu"), writes_tensorboard=False)


class _Seen(SmallTrial):
    """Validates with three metrics, of which a sum and a list show records that count twice."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.records: list[float] = []

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(DATA, batch_size=self.context.get_per_slot_batch_size())

    def evaluation_reducer(self) -> Any:
        return {"mean": Reducer.AVG, "count": Reducer.SUM, "batches": len}

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:  # type: ignore[override]  # without the index, as allowed
        self.records += batch[0].flatten().tolist()
        return {"mean": batch[0].mean(), "count": len(batch[0]), "batches": 1.0}


def _loop(trial: _Seen) -> TrainingLoop:
    context = trial.context
    traffic = Traffic((), StepClock())
    setting = SettledProfiling()
    return TrainingLoop(
        trial=cast("PyTorchTrial", trial),
        context=context,
        callbacks={},
        schedule=Schedule(
            max_length=pytorch.Batch(4),
            reporting_period=pytorch.Batch(1),
            validation_period=None,
            checkpoint_period=None,
            checkpoint_policy="none",
            aggregation_frequency=1,
        ),
        loader=trial.build_training_data_loader(),
        evaluation=Evaluation(trial, context, {}, trial.build_validation_data_loader()),
        profile=open_profile(
            setting, clock=StepClock(), trace=Trace(), traffic=traffic, device=torch.device("cpu"), batches=0
        ),
    )


def test_every_built_strategy_trains_other_records_on_each_rank() -> None:
    setting = make_setting(None, {}, {}, 1)
    for name in ("ddp", "zero1", "zero2", "zero3", "hsdp"):
        strategy = choose_strategy(name, SIZE, torch.device("cpu"), setting.optimizations)
        assert [strategy.replica_of(rank, SIZE) for rank in range(SIZE)] == [
            Replica(rank, SIZE) for rank in range(SIZE)
        ]
    assert SingleStrategy().replica_of(0, 1) == Replica()


def test_batches_are_divided_over_replicas() -> None:
    def work(distributed: DistributedContext) -> tuple[int, int]:
        context = _context(distributed, batch_size=7)
        return context.get_global_batch_size(), context.get_per_slot_batch_size()

    assert in_ranks(SIZE, work) == [(6, 3)] * SIZE


def test_ranks_of_a_replica_train_on_the_same_records_and_draw_the_same_numbers() -> None:
    def work(distributed: DistributedContext) -> tuple[list[float], int, int]:
        loop = _loop(_Seen(_context(distributed)))
        batches = loop._batches()
        seen = [value for _ in range(2) for value in next(batches)[0][0].flatten().tolist()]
        return seen, loop._position.epoch_length, loop._position.records_per_batch

    by_rank = in_ranks(SIZE, work)
    assert by_rank[0] == by_rank[1] != by_rank[2] == by_rank[3]
    assert sorted(by_rank[0][0] + by_rank[2][0]) == sorted(DATA.tensors[0].flatten().tolist())
    assert {(length, records) for _, length, records in by_rank} == {(2, 6)}


def test_a_replica_seeds_its_ranks_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: Counter[int] = Counter()
    monkeypatch.setattr(seed, "seed_training", lambda _trial_seed, replica: seeds.update([replica]))
    # The seed is the only part of `run` that this test needs.
    monkeypatch.setattr(TrainingLoop, "_train", lambda _self: None)
    monkeypatch.setattr(TrainingLoop, "_end", lambda _self: None)

    in_ranks(SIZE, lambda distributed: _loop(_Seen(_context(distributed))).run())
    assert seeds == {0: 2, 1: 2}


def test_a_validation_counts_every_record_once() -> None:
    def work(distributed: DistributedContext) -> tuple[dict[str, float], list[float]]:
        trial = _Seen(_context(distributed))
        metrics = Evaluation(trial, trial.context, {}, trial.build_validation_data_loader()).run()
        return metrics, trial.records

    by_rank = in_ranks(SIZE, work)
    mean = float(DATA.tensors[0].mean())
    for metrics, _ in by_rank:
        assert metrics == {"mean": pytest.approx(mean, abs=1e-6), "count": 12.0, "batches": 3.0}
    assert by_rank[0][1] == by_rank[1][1] != by_rank[2][1] == by_rank[3][1]


def test_only_counted_ranks_make_the_mean_of_training_metrics() -> None:
    reports = [
        [{"stage": (9.0, 1)}, {"loss": (6.0, 2)}, {}, {"loss": (2.0, 2)}],
        [{}, {"loss": (1.0, 1)}, {"stage": (9.0, 1)}, {"loss": (5.0, 1)}],
        [{}, {"loss": (1.0, 1)}, {}, {"error": (5.0, 1)}],
    ]

    def work(distributed: DistributedContext) -> tuple[list[dict[str, float]], int]:
        averaging = Averaging(distributed, is_counted=distributed.rank % 2 == 1)
        averaged: list[dict[str, float]] = []
        rounds = []
        for report in reports:
            averaged += averaging.average_later([report[distributed.rank]])()
            rounds.append(distributed._transport._round)  # type: ignore[attr-defined]  # what it has exchanged
        return averaged, rounds[1] - rounds[0]

    means = [{"loss": 2.0}, {"loss": 3.0}, {"loss": 1.0, "error": 5.0}]
    # Uncounted ranks report other names, which must not cost a second exchange.
    assert in_ranks(SIZE, work) == [(means, 1)] * SIZE


def test_reducers_see_the_values_of_counted_ranks_alone() -> None:
    def work(distributed: DistributedContext) -> dict[str, float]:
        reducers = Reducers(distributed, is_counted=distributed.rank % 2 == 1)
        reducer: Any = reducers.wrap(sum, "total", True, True)
        reducer.update(10.0**distributed.rank)
        return reducers.reduce(is_training=True)

    assert in_ranks(SIZE, work) == [{"total": 1010.0}] * SIZE


def test_profile_adds_the_records_of_counted_ranks() -> None:
    class Profiled:
        group = "profiling"

        def __init__(self, rank: int) -> None:
            self._rank = rank

        def take(self) -> dict[str, float]:
            return {SUMMED: 8.0, "step_seconds": float(self._rank)}

    def work(distributed: DistributedContext) -> dict[str, float]:
        context = _context(distributed)
        reported: dict[str, float] = {}
        keep: Any = lambda _group, _batches, metrics: reported.update(metrics)  # noqa: E731  it replaces a method
        context.core.train.report_metrics = keep  # type: ignore[method-assign]  # shows what is reported
        reports = TrainingReports(context, {}, cast("Any", Profiled(distributed.rank)), lambda _metrics, _batches: None)
        reports._report_profile()
        return reported

    assert in_ranks(SIZE, work)[0] == {SUMMED: 16.0, "step_seconds": 1.5}
