"""Joins an experiment's state in the mirror, its history and the leader's reasons into one view.

Owns the reason why an experiment makes no further trial now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gangline.domain.allocation import Allocation, Reason, waiting_reason
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.explanation import describe_undelivered
from gangline.domain.history import Newest, ProgressPoint
from gangline.domain.id import absent
from gangline.domain.search import Search
from gangline.domain.state import CheckpointState, ReasonCode, State
from gangline.domain.view import ExperimentProgress, ExperimentView, TrialView, count_at_risk, count_slots_ending
from gangline.errors import conflict
from services.common import keys
from services.gateway.history.reader import Reader
from services.gateway.mirror.mirror import Watched
from services.gateway.usecase.shared.pending import Pending

NOTHING = Newest()


class Views:
    def __init__(
        self, mirror: Watched, reader: Reader, pending: Pending, deletion_problem: Callable[[int], str] = lambda _: ""
    ) -> None:
        self._mirror = mirror
        self._reader = reader
        self._pending = pending
        self._deletion_problem = deletion_problem

    def seen_in(self, mirror: Watched) -> Views:
        """Returns the same views of what a caller sees."""
        return Views(mirror, self._reader, self._pending, self._deletion_problem)

    def experiment(self, experiment_id: int) -> Experiment:
        """Returns the experiment. Raises GanglineError `experiment.not_found`, and `experiment.deleting` for one of
        which parts may be gone."""
        experiment = self._mirror.state.experiments.find(keys.experiment(experiment_id))
        if experiment is None:
            raise absent("experiment", experiment_id)
        if experiment.is_deleting:
            problem = self._deletion_problem(experiment_id)
            wait = f", which is tried again until it works: {problem}" if problem else ""
            raise conflict("experiment.deleting", f"experiment {experiment_id} is being deleted{wait}")
        return experiment

    def trial(self, trial_id: str) -> Trial:
        """Returns the trial. Raises GanglineError `trial.not_found`, `experiment.deleting`."""
        trial = self._mirror.state.trials.find(keys.trial(trial_id))
        if trial is None:
            raise absent("trial", trial_id)
        experiment = self._mirror.state.experiments.find(keys.experiment(trial.experiment_id))
        if experiment is not None and experiment.is_deleting:
            self.experiment(trial.experiment_id)
        return trial

    async def confirm(self, *, experiment_id: int = 0, trial_id: str = "") -> None:
        """Returns when it is certain whether these exist. A record that the mirror does not have may be one that
        another gateway has just answered with. Raises GanglineError `gateway.behind`."""
        if experiment_id and self._mirror.state.experiments.find(keys.experiment(experiment_id)) is None:
            await self._mirror.confirm(keys.experiment(experiment_id))
        if trial_id and self._mirror.state.trials.find(keys.trial(trial_id)) is None:
            await self._mirror.confirm(keys.trial(trial_id))

    async def view_experiment(self, experiment_id: int) -> ExperimentView:
        await self.confirm(experiment_id=experiment_id)
        self.experiment(experiment_id)
        trials = sorted(self._mirror.state.trials.of(experiment_id), key=lambda trial: trial.number)
        newest = await self._reader.newest([trial.id for trial in trials])
        reasons = await self._reasons(trials)
        # Read again: the calls above took a while, and a view must not show a trial as older than its experiment.
        experiment = self.experiment(experiment_id)
        trials = sorted(self._mirror.state.trials.of(experiment_id), key=lambda trial: trial.number)
        search = self._mirror.state.searches.find(keys.search(experiment_id))
        undelivered = self._undelivered()
        views = tuple(self._join(trial, experiment, newest, reasons, undelivered) for trial in trials)
        return ExperimentView(experiment, views, search, explain_search(experiment, search, trials))

    async def view_trials(self, experiment_id: int, offset: int, limit: int) -> tuple[Sequence[TrialView], int]:
        """Returns a page of trials, by their numbers, and how many there are. Reads no more history than the page
        shows. limit: 0 for all."""
        await self.confirm(experiment_id=experiment_id)
        experiment = self.experiment(experiment_id)
        trials = sorted(self._mirror.state.trials.of(experiment_id), key=lambda trial: trial.number)
        shown = trials[offset : offset + limit if limit else None]
        newest = await self._reader.newest([trial.id for trial in shown])
        reasons = await self._reasons(shown)
        undelivered = self._undelivered()
        views = tuple(self._join(trial, experiment, newest, reasons, undelivered) for trial in shown)
        return views, len(trials)

    async def view_trial(self, trial_id: str) -> TrialView:
        await self.confirm(trial_id=trial_id)
        newest = await self._reader.newest([self.trial(trial_id).id])
        reasons = await self._reasons([self.trial(trial_id)])
        trial = self.trial(trial_id)
        experiment = self._mirror.state.experiments.find(keys.experiment(trial.experiment_id))
        return self._join(trial, experiment, newest, reasons, self._undelivered())

    async def _reasons(self, trials: list[Trial]) -> Mapping[str, Reason]:
        waiting = [trial.id for trial in trials if trial.state is State.QUEUED]
        standings = await self._pending.standings(waiting) if waiting else {}
        hide = self._mirror.state.hide
        return {trial_id: hide(standings[trial_id].reason) for trial_id in waiting if trial_id in standings}

    def _undelivered(self) -> Mapping[str, str]:
        return describe_undelivered(self._mirror.state.agents.all())

    def _join(
        self,
        trial: Trial,
        experiment: Experiment | None,
        newest: Mapping[str, Newest],
        reasons: Mapping[str, Reason],
        undelivered: Mapping[str, str],
    ) -> TrialView:
        checkpoint = self._mirror.state.checkpoints.find(keys.checkpoint(trial.latest_checkpoint_id))
        if checkpoint is None or checkpoint.state is CheckpointState.DELETING:
            # An ended trial's record is never changed, so it still has the name of a checkpoint that was deleted since.
            trial, checkpoint = replace(trial, latest_checkpoint_id=""), None
        latest = newest.get(trial.id, NOTHING)
        allocation = self._mirror.state.live_allocation(trial.id)
        reason = waiting_reason(allocation) if allocation is not None else None
        saved = _batches_of(trial, checkpoint)
        progress = progress_of(trial, allocation, latest, saved or 0)
        return TrialView(
            trial=shown_trial(trial, experiment),
            allocation=allocation,
            reason=reasons.get(trial.id) if trial.state is State.QUEUED else reason,
            checkpoint_batches=saved,
            batches_at_risk=count_at_risk(trial, allocation, progress, saved),
            progress=progress,
            training=latest.training,
            validation=latest.validation,
            warning=undelivered.get(trial.id, ""),
        )


def shown_trial(trial: Trial, experiment: Experiment | None) -> Trial:
    """Returns the trial as views show it: one that waits is PAUSED while its experiment is, so that the two states do
    not contradict each other. In etcd it stays QUEUED."""
    is_paused = experiment is not None and experiment.state is State.PAUSED and trial.state is State.QUEUED
    return replace(trial, state=State.PAUSED) if is_paused else trial


def progress_of(
    trial: Trial, allocation: Allocation | None, newest: Newest, saved_batches: int
) -> ProgressPoint | None:
    """Returns the progress of the present attempt; None if no attempt has reported any. allocation: the live one.
    saved_batches: how far the trial is at its checkpoint.

    Until an attempt reports, its progress is the checkpoint from which it goes on. What the attempt before it had done
    since that checkpoint is lost. The same holds for a trial that waits for its next attempt.
    """
    if newest.progress is None or trial.state is State.TERMINAL:
        return newest.progress
    if allocation is not None and newest.progress_attempt >= allocation.attempt:
        return newest.progress
    return ProgressPoint(saved_batches, trial.batches_total, samples_per_second=0.0)


def _batches_of(trial: Trial, checkpoint: Checkpoint | None) -> int | None:
    """Returns how far the trial was at its checkpoint. From another trial's checkpoint it begins at batch 0."""
    if checkpoint is None:
        return None
    return checkpoint.batches_completed if checkpoint.trial_id == trial.id else 0


def measure_progress(
    experiment: Experiment,
    search: Search | None,
    trials: Iterable[Trial],
    find_allocation: Callable[[str], Allocation | None],
) -> ExperimentProgress:
    """Sums up the trials' own records, so a list needs no history. find_allocation: returns a trial's live one."""
    made = list(trials)
    # Looked up only for the few experiments that are being paused or ended.
    live = (find_allocation(trial.id) for trial in made if trial.state is not State.TERMINAL)
    totals = [trial.batches_total for trial in made]
    return ExperimentProgress(
        experiment.id,
        num_trials_ended=sum(trial.state is State.TERMINAL for trial in made),
        num_trials_planned=max(len(made), search.num_planned if search is not None else 0),
        batches_completed=sum(trial.batches_completed for trial in made),
        batches_total=sum(totals) if all(totals) else 0,
        num_slots_ending=count_slots_ending(experiment, (allocation for allocation in live if allocation is not None)),
    )


def explain_search(experiment: Experiment, search: Search | None, trials: Sequence[Trial]) -> Reason | None:
    """Returns the reason; None when there is nothing to explain: it has made all of its trials, or it is being
    ended."""
    if experiment.state is State.PAUSED:
        return Reason(
            ReasonCode.PAUSED,
            f"experiment {experiment.id} is {experiment.reason or 'paused'}",
            f"it is activated: gangline experiment activate {experiment.id}",
        )
    is_ending = experiment.state in (State.STOPPING, State.TERMINAL)
    if search is None or is_ending or search.is_shut_down or search.num_wanted >= search.num_planned:
        return None
    going_on = [trial.id for trial in trials if trial.state is not State.TERMINAL]
    return Reason(
        ReasonCode.SEARCH_WAITING,
        f"{len(trials)} of {search.num_planned} trials are made, {len(going_on)} at a time",
        f"one of these ends: {', '.join(going_on)}",
        tuple(going_on),
    )
