"""Reporting metrics and progress: the train part of the Core API.

Owns what a report may hold and who may send it. On the cluster reports go to the trial runner, elsewhere to stdout.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from gangline.cluster_info import ClusterInfo
from gangline.core.distributed import DistributedContext
from gangline.core.link import Link
from gangline.errors import invalid

TRAINING = "training"
VALIDATION = "validation"
_log = logging.getLogger("gangline")


class TrainContext:
    """Chief only, all of it. steps_completed: batches since the trial began, over all restarts."""

    def __init__(self, distributed: DistributedContext, link: Link, cluster: ClusterInfo | None) -> None:
        self._distributed = distributed
        self._link = link
        self._is_local = cluster is None
        self._dropped: set[str] = set()

    def report_training_metrics(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        self.report_metrics(TRAINING, steps_completed, metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """The searcher and the checkpoint policy read these."""
        self.report_metrics(VALIDATION, steps_completed, metrics)

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """group: any name; "training" and "validation" are drawn by default. Values that are no numbers are left out,
        with one warning for each name."""
        self._check_chief("report_metrics")
        numbers = self._numbers_of(metrics)
        self._link.send_first_step()
        self._link.send_metrics(group, steps_completed, numbers)
        if self._is_local:
            _print_metrics(group, steps_completed, numbers)

    def report_progress(self, progress: float) -> None:
        """progress: from 0 to 1."""
        self._check_chief("report_progress")
        if not 0 <= progress <= 1:
            raise invalid("core.progress", f"report_progress({progress}): progress lies between 0 and 1")
        steps = self._link.batches_completed
        if progress > 0 and steps > 0:
            self._link.send_progress(steps, max(steps, round(steps / progress)), 0.0, 0.0)

    def set_status(self, status: str) -> None:
        """What the trial is doing, in a word or two; it goes to the trial's log."""
        self._check_chief("set_status")
        _log.info("status: %s", status)

    def _check_chief(self, call: str) -> None:
        if not self._distributed.is_chief:
            raise invalid(
                "core.chief_only", f"rank {self._distributed.rank} calls train.{call}(), which only rank 0 may"
            )

    def _numbers_of(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for name, value in metrics.items():
            try:
                numbers[str(name)] = float(value)
            except (TypeError, ValueError):
                if name not in self._dropped:
                    self._dropped.add(name)
                    _log.warning("metric %s is a %s, no number; it is not recorded", name, type(value).__name__)
        return numbers


def _print_metrics(group: str, steps_completed: int, metrics: Mapping[str, float]) -> None:
    text = "  ".join(f"{name} {value:.6g}" for name, value in sorted(metrics.items()))
    print(f"{group:<10} batch {steps_completed:>7}  {text}", flush=True)
