"""PURE: estimates how long trials take, from their own progress and that of their siblings.

Owns the choice of evidence: a trial's own pace first, else the median run time of the other trials of its experiment.
Without evidence an estimate is 0 and the planner makes its own guess. Estimates only order and reserve; no work is
ended because it exceeded one. A trial's recorded pace is that of its full size. An attempt on fewer slots does the same
batches, so it takes longer by the ratio of the slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from statistics import median

from gangline.domain.allocation import Allocation
from gangline.domain.experiment import Checkpoint, Trial
from gangline.domain.state import Outcome, State
from services.scheduler.state.records import Records, get

# 100 years: a longer estimate is meaningless, and would not fit into a date.
MOST_RUN_SECONDS = 100 * 365 * 86400.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Holds the newest progress that a trial's chief reported."""

    batches_completed: int
    batches_total: int  # 0 if unknown
    seconds_per_batch: float
    at: float

    @property
    def estimated_end_at(self) -> float:
        """Returns the estimated end; 0 when it is unknown. It is in the past for a trial that has done all its batches
        and still runs.
        """
        if not _is_pace(self.batches_total, self.seconds_per_batch):
            return 0.0
        left = max(0, self.batches_total - self.batches_completed) * self.seconds_per_batch
        return self.at + min(left, MOST_RUN_SECONDS)


class Estimates:
    """Estimates for one snapshot; the trials of each experiment are read once.

    progress_by_trial: the progress of running trials.
    """

    def __init__(self, records: Records, progress_by_trial: Mapping[str, Progress]) -> None:
        self._records = records
        self._progress_by_trial = progress_by_trial
        self._typical: dict[int, float] = {}

    def waiting_seconds(self, trial_id: str) -> float:
        """Returns how long the trial will run once it starts, from its latest checkpoint on; 0 when unknown."""
        trial = get(self._records, Trial, trial_id)
        return _seconds_left(trial, self._checkpoint(trial)) or self._typical_seconds(trial.experiment_id)

    def end_at(self, allocation: Allocation) -> float:
        """Returns when the allocation will end; in the past when it has exceeded its estimate, 0 when unknown."""
        progress = self._progress_by_trial.get(allocation.trial_id)
        end_at = progress.estimated_end_at if progress else 0.0
        if end_at:
            return end_at
        # This leader has no progress report yet, so the recorded pace counts from the latest checkpoint on.
        trial = get(self._records, Trial, allocation.trial_id)
        checkpoint = self._checkpoint(trial)
        left = _seconds_left(trial, checkpoint)
        if left:
            left *= _rounds(allocation)
            # Earlier versions stored reported times unchecked, so a recorded time may be infinite or not a number.
            saved_at = checkpoint.created_at if checkpoint and checkpoint.created_at < inf else 0.0
            return max(allocation.created_at, saved_at) + left
        typical = self._typical_seconds(trial.experiment_id)
        return allocation.created_at + typical * _rounds(allocation) if typical else 0.0

    def _checkpoint(self, trial: Trial) -> Checkpoint | None:
        if not trial.latest_checkpoint_id:
            return None
        checkpoint = self._records.find(Checkpoint, trial.latest_checkpoint_id)
        # A trial that begins from another trial's checkpoint counts from 0.
        return checkpoint if checkpoint is not None and checkpoint.trial_id == trial.id else None

    def _typical_seconds(self, experiment_id: int) -> float:
        if experiment_id not in self._typical:
            run_seconds = [
                seconds for trial in self._records.trials_of(experiment_id) if (seconds := _run_seconds(trial))
            ]
            self._typical[experiment_id] = median(run_seconds) if run_seconds else 0.0
        return self._typical[experiment_id]


def _rounds(allocation: Allocation) -> float:
    """Returns the ratio of the trial's full slots to the slots of this allocation; 1 at full size."""
    return allocation.full_slots / allocation.num_slots if allocation.full_slots else 1.0


def _run_seconds(trial: Trial) -> float:
    """Returns the time from the trial's first batch to its last; 0 when unknown.

    A trial that failed or was ended early gives no evidence, so it counts as unknown.
    """
    if trial.state is State.TERMINAL:
        if trial.outcome is not Outcome.COMPLETED:
            return 0.0
        if trial.attempts == 1 and trial.timeline.placed_at:
            return max(0.0, trial.ended_at - trial.timeline.placed_at)
    if not _is_pace(trial.batches_total, trial.seconds_per_batch):
        return 0.0
    return trial.batches_total * trial.seconds_per_batch


def _seconds_left(trial: Trial, checkpoint: Checkpoint | None) -> float:
    """Returns the time for the remaining batches, of at least one batch: a trial that has done all batches still has to
    start and report that.
    """
    if not _is_pace(trial.batches_total, trial.seconds_per_batch):
        return 0.0
    done = checkpoint.batches_completed if checkpoint else 0
    return min(max(1, trial.batches_total - done) * trial.seconds_per_batch, MOST_RUN_SECONDS)


def _is_pace(batches_total: int, seconds_per_batch: float) -> bool:
    """Returns whether the two numbers give an estimate. Records of earlier versions keep any number that a trial
    reported.
    """
    return batches_total > 0 and seconds_per_batch > 0 and batches_total * seconds_per_batch <= MOST_RUN_SECONDS
