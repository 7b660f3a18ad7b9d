"""Reports metrics and progress: the train part of the Core API.

Owns the rules of what a report may hold and which rank may send it. On the cluster reports go to the trial runner,
elsewhere to stdout.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from gangline.cluster_info import ClusterInfo
from gangline.core.beat import Beat, NoBeat
from gangline.core.distributed import DistributedContext
from gangline.core.link import Link
from gangline.core.tensorboard import TensorboardFolder, keep_name, take_all
from gangline.domain.history import MetricsPoint
from gangline.domain.metric_value import encode_metadata, encode_values
from gangline.domain.settled.record import Settled
from gangline.errors import GanglineError, InvalidHP, invalid
from gangline.lacking import Lacking

TRAINING = "training"
VALIDATION = "validation"
# How many validations are kept for checkpoints. Few suffice, because a checkpoint is saved soon after its validation.
_MOST_VALIDATIONS = 64
_log = logging.getLogger("gangline")


class EarlyExitReason(Enum):
    """INVALID_HP: these hyperparameters cannot be trained with. USER_REQUESTED_STOP: the script has trained enough."""

    INVALID_HP = "INVALID_HP"
    USER_REQUESTED_STOP = "USER_REQUESTED_STOP"


class TrainContext(Lacking):
    """Sends a trial's reports. Chief only, except for TensorBoard. steps_completed: batches since the trial began, over
    all restarts."""

    lacks = ("report_metadata",)

    def __init__(
        self,
        distributed: DistributedContext,
        link: Link,
        cluster: ClusterInfo | None,
        tensorboard: TensorboardFolder,
        beat: Beat | None = None,
    ) -> None:
        self._distributed = distributed
        self._link = link
        self._is_local = cluster is None
        settled = cluster.trial.settled if cluster is not None else Settled()
        # Name of the metric by which the searcher compares trials; None off the cluster.
        self._searched = settled.searcher.metric or None
        # Name of the validation metric that has to be finite; None where no metric has to be.
        self._decisive = None if settled.optimizations.nonfinite_loss == "ignore" else self._searched
        self._tensorboard = tensorboard
        self._beat = beat or NoBeat()
        self._dropped: set[str] = set()
        self._nonfinite: set[str] = set()
        self._has_warned_of_batch_metrics = False
        self._validations: tuple[tuple[int, dict[str, float]], ...] = ()
        self._units: float | None = None
        self._searcher = settled.searcher
        # Lengths, ascending, at which the searcher has not decided yet; None before the first validation.
        self._rungs: list[int] | None = None

    def note_units(self, units: float | None) -> None:
        """Keeps the length trained so far, in the searcher's unit. The next validations carry it, so the searcher knows
        which rungs they have reached. None: it is not known."""
        self._units = units

    def report_training_metrics(
        self,
        steps_completed: int,
        metrics: Mapping[str, Any],
        batch_metrics: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Reports metrics of the group "training". batch_metrics: accepted with one warning, no effect; only `metrics`
        is recorded."""
        if batch_metrics and not self._has_warned_of_batch_metrics:
            self._has_warned_of_batch_metrics = True
            _log.warning(
                "report_training_metrics: batch_metrics are not recorded; report each batch by itself for that"
            )
        self.report_metrics(TRAINING, steps_completed, metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Reports the metrics that the searcher and the checkpoint policy read. Raises GanglineError
        `training.nonfinite_metric` when the searcher's own metric is no finite number, unless
        optimizations.nonfinite_loss is "ignore".

        At a length at which the searcher decides about the trial, it waits for the decision, seconds at most. So
        `preempt.should_preempt` knows of an order to stop before the next batch."""
        self.report_metrics(VALIDATION, steps_completed, metrics)
        self._await_decision(steps_completed, metrics)

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Reports metrics. group: any name; "training" and "validation" are drawn by default.

        Texts, lists and mappings are recorded as JSON, up to 64 KiB each and 256 KiB together. A value that is larger
        or no JSON is left out, with one warning for each name. Raises GanglineError `core.searcher_metric` where the
        searcher's metric of a validation is no number; the report has been sent then.
        """
        self._report(group, steps_completed, metrics)

    def report_trainers_metrics(self, steps_completed: int, metrics: Mapping[str, Any], at: float) -> None:
        """Reports metrics of the group "training" that were gathered at another time, in seconds since 1970. For
        gangline.pytorch."""
        self._report(TRAINING, steps_completed, metrics, at)

    def _report(self, group: str, steps_completed: int, metrics: Mapping[str, Any], at: float | None = None) -> None:
        self._check_chief("report_metrics")
        numbers, others = _split(metrics)
        values_json, left_out = encode_values(others)
        self._warn_of(left_out)
        self._beat.report(steps_completed)
        self._link.send_first_step()
        units = self._units if group == VALIDATION else None
        self._link.send_metrics(MetricsPoint(group, steps_completed, numbers, values_json), units=units, at=at)
        if group == VALIDATION:
            finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
            self._validations = (*self._validations[1 - _MOST_VALIDATIONS :], (steps_completed, finite))
        if self._is_local:
            _print_metrics(group, steps_completed, numbers, values_json)
        # Last, because they may raise, and the report with the value must be sent first.
        if group == VALIDATION:
            self._check_searched(steps_completed, others)
        self._check_finite(group, steps_completed, numbers)

    def report_trainers_validation(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Does the same without a wait: a trainer asks for orders by its own pace. For gangline.pytorch."""
        self.report_metrics(VALIDATION, steps_completed, metrics)

    def _await_decision(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Waits until the searcher has decided at the rungs that this validation has reached."""
        if self._rungs is None:
            self._rungs = list(self._searcher.rungs)
        unit = self._searcher.unit_name
        units = metrics.get(unit, steps_completed if unit == "batches" else self._units)
        if not self._rungs or not isinstance(units, int | float) or units < self._rungs[0]:
            return
        self._rungs = [rung for rung in self._rungs if rung > units]
        try:
            self._find_trial()
        except GanglineError as error:
            _log.warning("training goes on without the searcher's decision: %s", error.message)

    def find_validation(self, steps_completed: int) -> Mapping[str, float]:
        """Returns the newest validation metrics that this process has reported up to these steps; empty before the
        first."""
        candidates = (metrics for steps, metrics in reversed(self._validations) if steps <= steps_completed)
        return next(candidates, {})

    def report_progress(self, progress: float) -> None:
        """Reports the progress of the trial. progress: from 0 to 1."""
        self._check_chief("report_progress")
        if not 0 <= progress <= 1:
            raise invalid("core.progress", f"report_progress({progress}): progress lies between 0 and 1")
        steps = self._link.batches_completed
        # Without both numbers there is no estimate of the total.
        if progress > 0 and steps > 0:
            self._link.send_progress(steps, max(steps, round(steps / progress)), 0.0, 0.0)

    def report_trainers_progress(self, steps_completed: int, total_steps: int) -> None:
        """Reports how many of its steps a trainer has done, where it knows both numbers. Chief only. For
        gangline.transformers and gangline.lightning."""
        if steps_completed > 0:
            self._link.send_progress(steps_completed, max(steps_completed, total_steps), 0.0, 0.0)

    def set_status(self, status: str) -> None:
        """Writes the trial's present activity, one or two words, to its log."""
        self._check_chief("set_status")
        _log.info("status: %s", status)

    def set_metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Sets the trial's metadata, which replace earlier ones, and returns them as they are kept. Any rank may call
        it; it waits for nothing, and an outage of the control plane loses nothing.

        metadata: plain data of at most 16 KiB as JSON; keys become strings. Raises GanglineError `core.metadata`.
        """
        metadata_json = encode_metadata(metadata)
        self._link.send_metadata(metadata_json)
        return dict(json.loads(metadata_json))

    def get_metadata(self) -> dict[str, Any] | None:
        """Returns the trial's metadata, which an earlier attempt may have set; None where none are set. Any rank may
        call it. It waits for the scheduler; raises GanglineError `core.no_answer` when none answers."""
        metadata_json = self._find_trial().metadata_json
        return dict(json.loads(metadata_json)) if metadata_json else None

    def get_experiment_best_validation(self) -> float | None:
        """Returns the best value of searcher.metric that any trial of the experiment has reported; None before the
        first one, and off the cluster. Any rank may call it. It waits as `get_metadata` does."""
        answer = self._find_trial()
        return float(answer.best_validation) if answer.HasField("best_validation") else None

    def _find_trial(self) -> Any:
        self._beat.touch()
        answer = self._link.find_trial()
        self._beat.touch()
        return answer

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        """Announces that the script ends early by itself. INVALID_HP raises InvalidHP: the trial fails with that reason
        and is not retried."""
        self._check_chief("report_early_exit")
        if reason is EarlyExitReason.INVALID_HP:
            raise InvalidHP("the script reported that these hyperparameters cannot be trained with")
        _log.info("the script ends early because it was asked to")

    def get_tensorboard_path(self) -> Path:
        """Returns a folder of this rank; files that are written there are copied to the trial's storage. Any rank may
        call it."""
        return self._tensorboard.path

    def upload_tensorboard_files(
        self,
        selector: Callable[[Path], bool] = take_all,
        mangler: Callable[[Path, int], Path] = keep_name,
    ) -> None:
        """Copies this rank's TensorBoard files to storage now; with TensorboardMode.MANUAL nothing else does. Any rank
        may call it.

        selector: chooses files by their path inside the folder. mangler: gets that path and the rank, and returns the
        path in storage.
        """
        self._tensorboard.upload(selector, mangler)

    def _check_chief(self, call: str) -> None:
        if not self._distributed.is_chief:
            raise invalid(
                "core.chief_only", f"rank {self._distributed.rank} calls train.{call}(), which only rank 0 may"
            )

    def _check_finite(self, group: str, steps_completed: int, numbers: Mapping[str, float]) -> None:
        nonfinite = {name: value for name, value in numbers.items() if not math.isfinite(value)}
        if group == VALIDATION and self._decisive in nonfinite:
            raise invalid(
                "training.nonfinite_metric",
                f"searcher.metric {self._decisive} is {nonfinite[self._decisive]} at batch {steps_completed}, by which "
                "nothing can be chosen; optimizations.nonfinite_loss: ignore trains on",
            )
        for name in nonfinite.keys() - self._nonfinite:
            self._nonfinite.add(name)
            _log.warning("metric %s is %s at batch %d", name, nonfinite[name], steps_completed)

    def _check_searched(self, steps_completed: int, others: Mapping[str, Any]) -> None:
        if self._searched is None or self._searched not in others:
            return
        raise invalid(
            "core.searcher_metric",
            f"searcher.metric {self._searched} is a {type(others[self._searched]).__name__} at batch "
            f"{steps_completed}, by which nothing can be compared; report one number under this name",
        )

    def _warn_of(self, left_out: Mapping[str, str]) -> None:
        for name in left_out.keys() - self._dropped:
            self._dropped.add(name)
            _log.warning("metric %s is %s; it is not recorded", name, left_out[name])


def _split(metrics: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """Returns the metrics that are numbers, and the others."""
    numbers: dict[str, float] = {}
    others: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, str | bytes | bytearray):
            # Python reads numbers from texts too, but a text is not meant as a number.
            others[str(name)] = value
            continue
        try:
            numbers[str(name)] = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            # torch raises a RuntimeError for a tensor of several entries.
            others[str(name)] = value
    return numbers, others


def _print_metrics(group: str, steps_completed: int, metrics: Mapping[str, float], values_json: str) -> None:
    text = "  ".join([*(f"{name} {value:.6g}" for name, value in sorted(metrics.items())), values_json]).rstrip()
    print(f"{group:<10} batch {steps_completed:>7}  {text}", flush=True)
