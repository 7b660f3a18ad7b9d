"""Passes the ranks' messages during training on to spool, scheduler and /metrics.

Owns which message goes where. Metrics, progress and logs are recorded. Validation, progress and checkpoints of the
chief also go to the scheduler, which decides by them. Progress is sent there at most every few seconds, and before
every other report. The rank group handles how a rank ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gangline.v1 import rank_pb2, runner_pb2, types_pb2
from services.trial_runner.delivery import metrics
from services.trial_runner.delivery.recorder import Recorder
from services.trial_runner.delivery.reporter import Reporter

CHIEF = 0
# Pause between two progress reports to the scheduler. Ranks report their progress every second, for users who watch.
# The scheduler only estimates ends by it, and each report costs time of the cores that train.
PROGRESS_SECONDS = 5.0
# Longest text of a wait, which is stored in etcd.
MAX_WAIT_CHARACTERS = 1000


class Relay:
    """Receives the ranks' messages. on_first_step: called once with the time at which the first optimizer step of this
    machine ended. clock: returns seconds."""

    def __init__(
        self,
        trial: types_pb2.Trial,
        recorder: Recorder,
        reporter: Reporter,
        on_first_step: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trial = trial
        self._recorder = recorder
        self._reporter = reporter
        self._on_first_step = on_first_step
        self._has_stepped = False
        self._batches = trial.batches_completed
        self._clock = clock
        self._held: runner_pb2.ProgressReport | None = None
        self._told_at = float("-inf")
        self._newest = runner_pb2.ProgressReport(batches_completed=trial.batches_completed)
        # What each rank waits for, in the order in which their waits began.
        self._waits: dict[int, str] = {}
        self._told_wait = ""
        # Whether a rank of this machine has reported a metric or a checkpoint.
        self.has_results = False
        # Whether one has reported a metric, a checkpoint or its progress.
        self.has_reported = False

    def on_message(self, rank: int, message: rank_pb2.RankMessage) -> None:
        kind = message.WhichOneof("message")
        self.has_reported |= kind in ("metrics", "progress", "checkpoint")
        match kind:
            case "metrics":
                self.has_results = True
                self._on_metrics(rank, message)
            case "progress":
                if rank == CHIEF:
                    self._on_progress(message.progress)
            case "checkpoint":
                self.has_results = True
                self._on_checkpoint(message.checkpoint)
            case "waiting":
                self._on_waiting(rank, message.waiting.text)
            case "first_step":
                if not self._has_stepped:
                    self._has_stepped = True
                    self._on_first_step(message.first_step.at)

    def tell_rest(self) -> None:
        """Reports the newest progress, if the scheduler does not have it yet. Called when the ranks have ended, and
        before other reports."""
        if self._held is not None:
            self._reporter.add(runner_pb2.TrialReport(progress=self._held))
            self._held, self._told_at = None, self._clock()

    def _on_metrics(self, rank: int, message: rank_pb2.RankMessage) -> None:
        point = message.metrics
        self._recorder.record_metrics(point, message.at)
        for name in ("loss", "validation_loss"):
            if name in point.metrics and point.group in ("training", "validation"):
                metrics.loss.labels(group=point.group).set(point.metrics[name])
        if rank == CHIEF and point.batches_completed > self._newest.batches_completed:
            # A script need not report its progress, or reports it before its metrics.
            self._newest.batches_completed = point.batches_completed
            if self._newest.batches_total:
                self._newest.batches_total = max(self._newest.batches_total, point.batches_completed)
            self._hold()
        if point.group == "validation" and rank == CHIEF:
            self.tell_rest()
            # The scheduler decides nothing by the other values. They may have 256 KiB, in each report that waits for a
            # leader.
            point.values_json = ""
            units = message.units if message.HasField("units") else None
            self._reporter.add(runner_pb2.TrialReport(metrics=point, units=units))

    def _on_progress(self, progress: rank_pb2.RankProgress) -> None:
        completed, total = progress.batches_completed, progress.batches_total
        self._recorder.record_progress(completed, total, progress.samples_per_second, progress.at)
        metrics.observe_progress(completed, self._batches, progress.seconds_per_batch, progress.samples_per_second)
        self._batches = completed
        self._newest = runner_pb2.ProgressReport(
            batches_completed=completed,
            batches_total=total,
            seconds_per_batch=progress.seconds_per_batch,
            takes_traces=progress.takes_traces,
        )
        self._hold()

    def _hold(self) -> None:
        self._held = runner_pb2.ProgressReport()
        self._held.CopyFrom(self._newest)
        if self._clock() - self._told_at >= PROGRESS_SECONDS:
            self.tell_rest()

    def _on_waiting(self, rank: int, text: str) -> None:
        """Reports what the ranks of this machine wait for: the wait that began first speaks for all."""
        if text:
            self._waits[rank] = text[:MAX_WAIT_CHARACTERS]
        else:
            self._waits.pop(rank, None)
        first = next(iter(self._waits.values()), "")
        if first != self._told_wait:
            self._told_wait = first
            self._reporter.add(runner_pb2.TrialReport(waiting=runner_pb2.WaitingReport(text=first)))

    def _on_checkpoint(self, checkpoint: types_pb2.Checkpoint) -> None:
        """Adds the ids of trial and experiment, which a rank need not know."""
        checkpoint.trial_id = self._trial.id
        checkpoint.experiment_id = self._trial.experiment_id
        self.tell_rest()
        self._reporter.add(runner_pb2.TrialReport(checkpoint=checkpoint))
