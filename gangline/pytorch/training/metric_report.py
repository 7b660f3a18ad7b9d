"""Sends training reports: the metrics of batches, averaged over all ranks, and the profile.

Owns the sums since the last report and their path to the core context, TensorBoard and callbacks. The training loop
drives it and decides when a report is due. Reports that follow each other soon are exchanged between the ranks
together, because an exchange takes a millisecond of each processor, however few numbers it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gangline.core.beat import BETWEEN, REPORT
from gangline.pytorch.metrics import metric, reducer
from gangline.pytorch.metrics.metric import Averaging
from gangline.pytorch.profile.profile import SUMMED, Profile, mean
from gangline.pytorch.training.drift import DriftCheck
from gangline.pytorch.trial.callback import PyTorchCallback, call_all
from gangline.pytorch.trial.context import PyTorchTrialContext

# Reports that one exchange has at most. It bounds how late they come where batches become slower.
MOST_TOGETHER = 8
CheckFinite = Callable[[tuple[str, float] | None, int], None]
"""Called with a metric that is no finite number, if there is one, and the batches completed."""


@dataclass(frozen=True, slots=True)
class _Report:
    """Report of training metrics on its way."""

    batches: int
    at: float  # time of its last batch
    own: metric.Totals  # sums and counts of this rank


class TrainingReports:
    """Gathers and sends the reports of one trial. All ranks call everything but `add` in step.

    newest: the batches completed at the newest report. describe_newest: the checkpoint that training can continue from,
    as a clause of a message.
    """

    def __init__(
        self,
        context: PyTorchTrialContext,
        callbacks: Mapping[str, PyTorchCallback],
        profile: Profile,
        check_finite: CheckFinite,
        describe_newest: Callable[[], str] = lambda: "there is no checkpoint yet",
    ) -> None:
        self.newest = 0
        self._context = context
        self._callbacks = callbacks
        self._profile = profile
        self._check_finite = check_finite
        self._describe_newest = describe_newest
        self._drift = DriftCheck(context)
        self._sums = metric.MetricSums()
        self._averaging = Averaging(context.distributed, context.replica.is_counted)
        # The chief of a pipeline has no metrics of its own where another rank computes the loss.
        self._is_joint = context.distributed.size > 1 and (
            context.setting.optimizations.average_training_metrics or context.replica.count != context.distributed.size
        )
        self._is_profiled = context.profiling.enabled
        self._keeps_batch_metrics = any(_wants_batch_metrics(callback) for callback in callbacks.values())
        self._batch_metrics: list[dict[str, Any]] = []
        self._ends_at_once = False
        self._waiting: list[_Report] = []
        self._under_way: list[_Report] = []
        self._average: Callable[[], list[dict[str, float]]] | None = None
        # The batches completed when the exchange under way began.
        self._began = 0

    def start(self, batches: int) -> None:
        """Starts the reports. batches: completed before the first `add`. Raises GanglineError `training.drift` where
        ranks begin with different parameters, as after a load on one rank alone: a step with zero1 would mix them."""
        self.newest = batches
        self._drift.start(batches)
        self._drift.begin(batches, is_wanted=True)
        self._drift.end(batches, self._describe_newest)
        self._drift.start(batches)
        self._context.reducers.reset(is_training=True)
        # Reducers, callbacks for batch metrics and the profile need values of the moment at which a report is due.
        at_once = self._keeps_batch_metrics or self._is_profiled or self._context.reducers.has_any(is_training=True)
        # If one rank waits, all ranks wait, because they must exchange in the same order.
        self._ends_at_once = bool(self._context.distributed.maximum([int(at_once)])[0])

    def add(self, result: Any, weight: float = 1.0) -> None:
        """Adds a batch. result: of train_batch. weight: of this result beside other ranks' results of the same batch.
        Raises GanglineError `pytorch.metrics`."""
        self._sums.add(result, "train_batch", weight)
        if self._keeps_batch_metrics and weight:
            self._batch_metrics.append(metric.as_mapping(result, "train_batch"))

    def check(self, batches: int) -> None:
        """Checks that all losses so far are finite, reported or not, and that the ranks' parameters are the same. Waits
        for the device."""
        self.flush(batches)
        self._drift.begin(batches, is_wanted=True)
        self._drift.end(batches, self._describe_newest)
        self._check_finite(self._sums.nonfinite_loss(), batches)

    def begin(self, batches: int, may_wait: bool) -> None:
        """Begins a report of the mean over the batches since the last report.

        may_wait: whether no exchange is under way, and the caller calls `end` after the next batch and `exchange` soon,
        so that no rank waits for the others' numbers. If reducers, callbacks or the profile need the report at once, it
        ends here anyway.
        """
        self.newest = batches
        self._waiting.append(_Report(batches, time.time(), self._sums.take()))
        if self._ends_at_once or not may_wait:
            self.flush(batches)
        elif not self._is_joint or len(self._waiting) == MOST_TOGETHER or self._drift.is_urgent(batches):
            self.exchange(batches)

    def exchange(self, batches: int) -> None:
        """Begins to exchange what waits, if anything. `end` ends it, after the next batch, so that no rank waits."""
        if not self._waiting:
            return
        assert self._average is None
        self._under_way, self._waiting, self._began = self._waiting, [], batches
        own = [report.own for report in self._under_way]
        self._average = (
            self._averaging.average_later(own)
            if self._is_joint
            else lambda: [metric.average([totals]) for totals in own]
        )
        self._drift.begin(batches)
        if self._drift.ends_at_once:
            self._context.core.beat.enter(REPORT)
            self._drift.end(batches, self._describe_newest)
            self._context.core.beat.stay(BETWEEN)

    def flush(self, batches: int) -> None:
        """Exchanges and sends everything that was begun."""
        self.end()
        self.exchange(batches)
        self.end()

    def end(self) -> None:
        """Sends the reports that are under way, if any."""
        if self._average is None:
            return
        beat = self._context.core.beat
        beat.enter(REPORT)
        averages = self._average()
        self._average = None
        self._drift.end(self._began, self._describe_newest)
        for report, averaged in zip(self._under_way, averages, strict=True):
            self._send(report, averaged)
        beat.stay(BETWEEN)

    def _send(self, report: _Report, averaged: dict[str, float]) -> None:
        metrics = reducer.join(averaged, self._context.reducers.reduce(is_training=True), "train_batch")
        self._check_finite(metric.find_nonfinite_loss(metrics), report.batches)
        if self._context.distributed.is_chief:
            self._context.core.train.report_trainers_metrics(report.batches, metrics, report.at)
            self._context.log_to_tensorboard("training", report.batches, metrics)
        if self._is_profiled:
            self._report_profile()
        batch_metrics, self._batch_metrics = self._batch_metrics, []
        call_all(
            self._callbacks.values(),
            self._context.core.beat,
            lambda callback: callback.on_training_workload_end(metrics, batch_metrics),
        )

    def _report_profile(self) -> None:
        own = self._profile.take()
        if not self._context.replica.is_counted:
            own.pop(SUMMED, None)
        means = mean(self._context.distributed.allgather(own))
        if means and self._context.distributed.is_chief:
            self._context.core.train.report_metrics(self._profile.group, self.newest, means)
            self._context.log_to_tensorboard(self._profile.group, self.newest, means)


def _wants_batch_metrics(callback: PyTorchCallback) -> bool:
    return type(callback).on_training_workload_end is not PyTorchCallback.on_training_workload_end
