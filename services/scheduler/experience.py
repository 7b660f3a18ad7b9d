"""PURE: how long the trials of each pool ran that ended last.

Their median stands in, in expected starts alone, where nothing is known of a trial. Kept by the leader in memory: a new
one learns from the records, and from then on of every change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from heapq import nlargest
from statistics import median

from gangline.domain.experiment import Experiment, Trial
from gangline.domain.state import State as Stage
from services.scheduler.facts import facts_of
from services.scheduler.records import Records, get

NUM_REMEMBERED = 200
# A new leader looks at so many: to know a trial's pool, a configuration has to be parsed.
NUM_RECALLED = 1000
# Of fewer, the median says little.
FEWEST_ENDED = 5


class Experience:
    def __init__(self) -> None:
        self._seconds: dict[str, deque[float]] = {}

    def learn(self, records: Records, trials: Iterable[Trial]) -> None:
        """Of those among the trials that have ended, by their last attempt; told of once each, the oldest first."""
        for trial in trials:
            seconds = _run_seconds(trial)
            if seconds is not None:
                pool = facts_of(get(records, Experiment, trial.experiment_id).config_json).pool_name
                self._seconds.setdefault(pool, deque(maxlen=NUM_REMEMBERED)).append(seconds)

    @property
    def typical_run_seconds(self) -> Mapping[str, float]:
        """By pool; without those where too few have ended."""
        return {pool: median(ended) for pool, ended in self._seconds.items() if len(ended) >= FEWEST_ENDED}


def newest_ended(trials: Iterable[Trial]) -> list[Trial]:
    """The last NUM_RECALLED that have ended, the oldest first."""
    ended = (trial for trial in trials if trial.state is Stage.TERMINAL)
    return nlargest(NUM_RECALLED, ended, key=lambda trial: trial.ended_at)[::-1]


def _run_seconds(trial: Trial) -> float | None:
    """None for one that has not ended or never had slots."""
    began_at = trial.timeline.placed_at
    return trial.ended_at - began_at if trial.state is Stage.TERMINAL and 0 < began_at <= trial.ended_at else None
