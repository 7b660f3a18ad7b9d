"""PURE: keeps the run times of the trials of each pool that ended last.

Their median replaces the unknown run time of a trial, in expected starts only. The leader keeps them in memory: a new
leader reads them from the records, and from then on from every change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from heapq import nlargest
from statistics import median

from gangline.domain.experiment import Experiment, Trial
from gangline.domain.state import State as Stage
from services.scheduler.state.records import Records, get
from services.scheduler.state.settled import settled_of

NUM_REMEMBERED = 200
# Trials that a new leader reads. Bounded, because a trial's pool is known only by parsing a configuration.
NUM_RECALLED = 1000
# The median of fewer run times is not reliable.
FEWEST_ENDED = 5


class RunHistory:
    def __init__(self) -> None:
        self._seconds: dict[str, deque[float]] = {}

    def learn(self, records: Records, trials: Iterable[Trial]) -> None:
        """Adds the run times of the trials that have ended, by their last attempt. The caller passes each trial once,
        the oldest first.
        """
        for trial in trials:
            seconds = _run_seconds(trial)
            if seconds is not None:
                pool = settled_of(get(records, Experiment, trial.experiment_id).config_json).resources.pool_name
                self._seconds.setdefault(pool, deque(maxlen=NUM_REMEMBERED)).append(seconds)

    @property
    def typical_run_seconds(self) -> Mapping[str, float]:
        """Returns the median run time by pool, without pools in which fewer than FEWEST_ENDED trials ended."""
        return {pool: median(ended) for pool, ended in self._seconds.items() if len(ended) >= FEWEST_ENDED}


def newest_ended(trials: Iterable[Trial]) -> list[Trial]:
    """Returns the last NUM_RECALLED trials that have ended, the oldest first."""
    ended = (trial for trial in trials if trial.state is Stage.TERMINAL)
    return nlargest(NUM_RECALLED, ended, key=lambda trial: trial.ended_at)[::-1]


def _run_seconds(trial: Trial) -> float | None:
    """Returns the run time; None for a trial that has not ended or never had slots."""
    began_at = trial.timeline.placed_at
    return trial.ended_at - began_at if trial.state is Stage.TERMINAL and 0 < began_at <= trial.ended_at else None
