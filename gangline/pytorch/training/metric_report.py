"""Sends training reports: the metrics of batches, averaged over all ranks, and the profile.

Owns the sums since the last report and their path to the core context, TensorBoard and callbacks. The training loop
drives it and decides when a report is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gangline.core.beat import BETWEEN, REPORT
from gangline.pytorch.metrics import metric, reducer
from gangline.pytorch.metrics.metric import Averaging
from gangline.pytorch.profile.profile import SUMMED, Profile, mean
from gangline.pytorch.training.drift import DriftCheck
from gangline.pytorch.trial.callback import PyTorchCallback, call_all
from gangline.pytorch.trial.context import PyTorchTrialContext

CheckFinite = Callable[[tuple[str, float] | None, int], None]
"""Called with a metric that is no finite number, if there is one, and the batches completed."""


class TrainingReports:
    """Gathers and sends the reports of one trial. All ranks call everything but `add` in step.

    newest: the batches completed at the newest report, begun or ended. describe_newest: the checkpoint that training
    can continue from, as a clause of a message.
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
        self._is_counted_alone = context.replica.count == context.distributed.size
        self._is_profiled = context.profile_setting.is_enabled
        self._keeps_batch_metrics = any(_wants_batch_metrics(callback) for callback in callbacks.values())
        self._batch_metrics: list[dict[str, Any]] = []
        self._ends_at_once = False
        self._average: Callable[[], dict[str, float]] | None = None

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
        self.end()
        self._drift.begin(batches, is_wanted=True)
        self._drift.end(batches, self._describe_newest)
        self._check_finite(self._sums.nonfinite_loss(), batches)

    def begin(self, batches: int, may_wait: bool) -> None:
        """Begins a report of the mean over the batches since the last report. Called only when no report is under way.

        may_wait: whether the caller calls `end` one batch later, so that no rank waits for the others' numbers. If
        reducers, callbacks or the profile need the report at once, it ends here anyway.
        """
        assert self._average is None
        self.newest = batches
        own = self._sums.take()
        # The chief of a pipeline has no metrics of its own where another rank computes the loss.
        is_joint = self._context.setting.optimizations.average_training_metrics or not self._is_counted_alone
        self._average = self._averaging.average_later(own) if is_joint else lambda: metric.average([own])
        self._drift.begin(batches)
        if self._drift.ends_at_once:
            self._context.core.beat.enter(REPORT)
            self._drift.end(batches, self._describe_newest)
            self._context.core.beat.stay(BETWEEN)
        if self._ends_at_once or not may_wait:
            self.end()

    def end(self) -> None:
        """Sends the report that was begun, if any."""
        if self._average is None:
            return
        beat = self._context.core.beat
        beat.enter(REPORT)
        averaged = self._average()
        self._average = None
        self._drift.end(self.newest, self._describe_newest)
        metrics = reducer.join(averaged, self._context.reducers.reduce(is_training=True), "train_batch")
        self._check_finite(metric.find_nonfinite_loss(metrics), self.newest)
        if self._context.distributed.is_chief:
            self._context.core.train.report_training_metrics(self.newest, metrics)
            self._context.log_to_tensorboard("training", self.newest, metrics)
        if self._is_profiled:
            self._report_profile()
        batch_metrics, self._batch_metrics = self._batch_metrics, []
        call_all(
            self._callbacks.values(), beat, lambda callback: callback.on_training_workload_end(metrics, batch_metrics)
        )
        beat.stay(BETWEEN)

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
