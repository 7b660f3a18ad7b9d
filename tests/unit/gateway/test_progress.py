"""How far an experiment is, in the answer that lists experiments."""

from __future__ import annotations

from dataclasses import replace

from gangline.domain.allocation import Allocation, Member
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.search import Search
from gangline.domain.state import Outcome, State
from gangline.domain.view import ExperimentProgress
from services.gateway.usecase.shared.view import measure_progress

EXPERIMENT = Experiment(7, "digits", "ann", "{}", "", state=State.RUNNING)
ENDED = Trial("7.1", 7, 1, state=State.TERMINAL, outcome=Outcome.FAILED, batches_completed=30, batches_total=100)
RUNNING = Trial("7.2", 7, 2, state=State.RUNNING, batches_completed=50, batches_total=100)
QUEUED = Trial("7.3", 7, 3)
ALLOCATIONS = {
    "7.2": Allocation("7.2.1", "7.2", 7, 1, 1, "default", (Member("a1", 0, ("a1/0", "a1/1")),)),
}


def _measure(search: Search | None, trials: list[Trial], experiment: Experiment = EXPERIMENT) -> ExperimentProgress:
    return measure_progress(experiment, search, trials, ALLOCATIONS.get)


def test_an_experiment_without_trials_has_no_progress() -> None:
    assert _measure(None, []) == ExperimentProgress(7)


def test_a_single_trial_counts_its_batches() -> None:
    assert _measure(Search(7, 0, num_planned=1), [RUNNING]) == ExperimentProgress(7, 0, 1, 50, 100)


def test_a_search_counts_its_trials_of_those_planned() -> None:
    assert _measure(Search(7, 0, num_planned=40), [ENDED, RUNNING]) == ExperimentProgress(7, 1, 40, 80, 200)


def test_an_experiment_of_an_older_version_has_no_search() -> None:
    assert _measure(None, [ENDED, RUNNING]) == ExperimentProgress(7, 1, 2, 80, 200)


def test_the_total_is_unknown_while_one_trial_does_not_know_its_length() -> None:
    assert _measure(None, [RUNNING, QUEUED]) == ExperimentProgress(7, 0, 2, 50, 0)


def test_slots_are_counted_as_ending_while_a_paused_or_stopping_experiment_holds_them() -> None:
    for state, num_slots in ((State.RUNNING, 0), (State.PAUSED, 2), (State.STOPPING, 2)):
        progress = _measure(None, [RUNNING, QUEUED], replace(EXPERIMENT, state=state))
        assert progress.num_slots_ending == num_slots
