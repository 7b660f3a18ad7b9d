"""PURE: decides which logs and metrics are old enough to be deleted.

A trial's days count from its end. A trial that has not ended, or has begun again, loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from gangline.domain.experiment import Experiment, Trial
from gangline.domain.settled.reading import settle
from gangline.domain.state import State

DAY_SECONDS = 86_400.0
# Keeps for ever.
FOR_EVER = -1


class HistoryKind(StrEnum):
    LOGS = "logs"
    METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class Days:
    """Holds for how many days after the end of a trial its logs and metrics are kept. -1: for ever."""

    logs: int = FOR_EVER
    metrics: int = FOR_EVER


@dataclass(frozen=True, slots=True)
class HistoryExpiry:
    """Names what has to be deleted, and the rule."""

    trial_id: str
    kind: HistoryKind
    days: int

    @property
    def notice(self) -> str:
        """Returns the line that stays in the log."""
        after = f"{self.days} days after the end of the trial" if self.days else "after the end of the trial"
        if self.kind is HistoryKind.LOGS:
            return f"the log of this trial was deleted {after} (log_retention_days)"
        return f"the metrics of this trial were deleted {after} (metric_retention_days), except for the newest"


def find_expired(
    experiments: Iterable[Experiment], trials: Iterable[Trial], days: Days, now: float
) -> list[HistoryExpiry]:
    """Returns what is due. days: of experiments that name none. now: seconds since 1970."""
    days_by_experiment_id = {experiment.id: _days_of(experiment, days) for experiment in experiments}
    return [
        expiry
        for trial in trials
        if trial.state is State.TERMINAL and trial.ended_at and trial.experiment_id in days_by_experiment_id
        for expiry in _expiries(trial, days_by_experiment_id[trial.experiment_id], now)
    ]


def _days_of(experiment: Experiment, days: Days) -> Days:
    policy = settle(experiment.config_json).retention_policy
    return Days(
        days.logs if policy.log_retention_days is None else policy.log_retention_days,
        days.metrics if policy.metric_retention_days is None else policy.metric_retention_days,
    )


def _expiries(trial: Trial, days: Days, now: float) -> Iterator[HistoryExpiry]:
    for kind, num_days in ((HistoryKind.LOGS, days.logs), (HistoryKind.METRICS, days.metrics)):
        if num_days != FOR_EVER and now >= trial.ended_at + num_days * DAY_SECONDS:
            yield HistoryExpiry(trial.id, kind, num_days)
