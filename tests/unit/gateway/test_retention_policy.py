"""The rule of days: only what ended long ago, by the experiment's own days before the gateway's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.domain.experiment import Experiment, Trial
from gangline.domain.state import State
from services.gateway.history.retention_policy import Days, HistoryExpiry, HistoryKind, find_expired

_DAY = 86_400.0
_ENDED = Trial("7.1", 7, 1, state=State.TERMINAL, ended_at=1e9)


def _expired(config: str, days: Days, now: float, trial: Trial = _ENDED) -> list[HistoryExpiry]:
    experiment = Experiment(7, "digits", "ann", config, "c" * 64)
    return find_expired([experiment], [trial], days, now)


@pytest.mark.parametrize(
    ("config", "days", "logs", "metrics"),
    [
        ("{}", Days(), None, None),
        ("{}", Days(30, 60), 30, 60),
        ('{"retention_policy": {"log_retention_days": 5}}', Days(30, 60), 5, 60),
        ('{"retention_policy": {"log_retention_days": -1, "metric_retention_days": 0}}', Days(30, 60), None, 0),
        ('{"retention_policy": {"log_retention_days": null}}', Days(30), 30, None),
        ('{"retention_policy": null}', Days(30), 30, None),
        ("no JSON", Days(30), 30, None),
    ],
)
def test_days_count_from_the_end_of_the_trial(config: str, days: Days, logs: int | None, metrics: int | None) -> None:
    for kind, num_days in ((HistoryKind.LOGS, logs), (HistoryKind.METRICS, metrics)):
        due_at = 1e9 + (num_days if num_days is not None else 100_000) * _DAY
        before = {expiry.kind for expiry in _expired(config, days, due_at - 1)}
        after = {expiry.kind: expiry.days for expiry in _expired(config, days, due_at)}
        assert kind not in before
        assert after.get(kind) == num_days


def test_a_trial_that_runs_or_whose_experiment_is_gone_loses_nothing() -> None:
    for trial in (
        replace(_ENDED, state=State.RUNNING),
        replace(_ENDED, ended_at=0.0),
        replace(_ENDED, experiment_id=8),
    ):
        assert _expired("{}", Days(0, 0), 2e9, trial) == []
