"""PURE: how far a search is: its ratio, its counts by state, the time left, its best trial and the trials to show.

Only the live view uses it. The line about a search that other texts use is in `summary`.
"""

from __future__ import annotations

import json
from collections import Counter

from gangline.cli.output.summary import best_trial, differing, flatten, format_values, searched_metric, status_word
from gangline.cli.output.text import count, format_duration
from gangline.domain.state import Outcome, State
from gangline.domain.view import ExperimentView, TrialView

# Ended trials first, then the others in the order in which a trial passes through the states.
_ORDER = (
    *(Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELED),
    *(State.RUNNING, State.STARTING, State.STOPPING, State.QUEUED, State.PAUSED),
)


def num_planned(view: ExperimentView) -> int:
    return max(len(view.trials), view.search.num_planned if view.search else 0)


def num_ended(view: ExperimentView) -> int:
    return sum(trial.trial.state is State.TERMINAL for trial in view.trials)


def search_ratio(view: ExperimentView) -> float:
    """Returns the progress of a search from 0 to 1. A trial that goes on counts with the part that it has done."""
    going_on = [trial for trial in view.trials if trial.trial.state is not State.TERMINAL]
    parts = [min(1.0, max(0, done) / total) for done, total in map(_batches_of, going_on) if total > 0]
    return min(1.0, (num_ended(view) + sum(parts)) / max(1, num_planned(view)))


def seconds_left(view: ExperimentView) -> float | None:
    """Estimates the seconds until the search ends. Returns None while no trial runs, or none has reported its pace.

    A trial that has no pace of its own is taken to be as long as the mean of those that have one. As many trials run at
    a time as run now. A search whose trials are ended early ends before that.
    """
    running = [trial for trial in view.trials if trial.trial.state is State.RUNNING]
    lengths = [length for trial in view.trials if (length := _length_seconds(trial)) is not None]
    if view.experiment.state is not State.RUNNING or not running or not lengths:
        return None
    mean = sum(lengths) / len(lengths)
    going_on = [trial for trial in view.trials if trial.trial.state is not State.TERMINAL]
    left = [_own_seconds_left(trial, mean) for trial in going_on]
    total = sum(left) + (num_planned(view) - len(view.trials)) * mean
    return max(*(_own_seconds_left(trial, mean) for trial in running), total / len(running))


def ended_line(view: ExperimentView) -> str:
    """Returns text such as: 12 of 40 trials ended, about 5 min left."""
    line = f"{num_ended(view)} of {count(num_planned(view), 'trial')} ended"
    left = seconds_left(view)
    return line if left is None else f"{line}, about {format_duration(left)} left"


def counts(view: ExperimentView) -> list[tuple[int, str]]:
    """Returns the number of trials by outcome or state, without those of which there are none."""
    number_by_word = Counter(status_word(trial.trial) for trial in view.trials)
    return [(number_by_word[word], str(word)) for word in _ORDER if number_by_word[word]]


def best_line(view: ExperimentView) -> str:
    """Returns text such as: best accuracy 0.972: trial 1.3, lr 0.001; empty before the first validation."""
    best = best_trial(view)
    if best is None or best.trial.best_validation is None:
        return ""
    points = [flatten(json.loads(trial.trial.hyperparameters_json or "{}")) for trial in view.trials]
    own = flatten(json.loads(best.trial.hyperparameters_json or "{}"))
    values = format_values({name: own[name] for name in differing(points) if name in own})
    metric = f"best {searched_metric(view.experiment)[0]}".rstrip()
    return f"{metric} {best.trial.best_validation:.4g}: trial {best.trial.id}, {values}"


def _batches_of(view: TrialView) -> tuple[int, int]:
    """Returns the batches that a trial has done and those that it will do; 0 for an unknown length."""
    if view.progress is not None and view.progress.batches_total > 0:
        return view.progress.batches_completed, view.progress.batches_total
    return view.trial.batches_completed, view.trial.batches_total


def _length_seconds(view: TrialView) -> float | None:
    """Returns the seconds of a whole trial, or of one that has completed; None without a pace. A failed or canceled
    trial says nothing about the length of others."""
    done, total = _batches_of(view)
    batches = done if view.trial.state is State.TERMINAL else total
    if view.trial.outcome not in (None, Outcome.COMPLETED) or batches <= 0 or view.trial.seconds_per_batch <= 0:
        return None
    return batches * view.trial.seconds_per_batch


def _own_seconds_left(view: TrialView, mean: float) -> float:
    done, total = _batches_of(view)
    if total <= 0:
        return mean
    pace = view.trial.seconds_per_batch or mean / total
    return max(0, total - done) * pace
