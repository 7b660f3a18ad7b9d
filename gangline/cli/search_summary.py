"""PURE: text about an experiment with several trials: a row for each, the best one, and how many are in each state.

`summary` makes the text about one trial.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gangline.cli.text import count, format_table
from gangline.domain.experiment import Experiment
from gangline.domain.state import State
from gangline.domain.view import ExperimentView, TrialView

_STATES = (State.RUNNING, State.STARTING, State.STOPPING, State.QUEUED)


def is_search(view: ExperimentView) -> bool:
    """Returns whether there are, or will be, several trials."""
    return len(view.trials) > 1 or (view.search is not None and view.search.num_planned > 1)


def searched_metric(experiment: Experiment) -> tuple[str, bool]:
    """Returns the metric that decides which trial is best, and whether smaller is better."""
    searcher = json.loads(experiment.config_json or "{}").get("searcher", {})
    return searcher.get("metric", ""), searcher.get("smaller_is_better", True)


def best_trial(view: ExperimentView) -> TrialView | None:
    """Returns the trial with the best validation; None before the first validation."""
    validated = [trial for trial in view.trials if trial.trial.best_validation is not None]
    _, smaller_is_better = searched_metric(view.experiment)
    best = min if smaller_is_better else max
    return best(validated, key=lambda trial: trial.trial.best_validation or 0.0, default=None)


def headings(view: ExperimentView) -> tuple[str, ...]:
    metric, _ = searched_metric(view.experiment)
    return ("TRIAL", "STATE", "HYPERPARAMETERS", "BATCHES", f"BEST {metric}".rstrip())


def trial_rows(view: ExperimentView) -> list[tuple[str, ...]]:
    """Returns one row for each trial: id, state, the hyperparameters that differ, batches, best validation."""
    hyperparameters = [flatten(json.loads(trial.trial.hyperparameters_json or "{}")) for trial in view.trials]
    names = differing(hyperparameters)
    best = best_trial(view)
    return [
        (
            trial.trial.id,
            str(trial.trial.outcome or trial.trial.state),
            format_values({name: values[name] for name in names if name in values}),
            _batches(trial),
            _best_validation(trial) + (" *" if best is not None and trial.trial.id == best.trial.id else ""),
        )
        for trial, values in zip(view.trials, hyperparameters, strict=True)
    ]


def trial_table(view: ExperimentView) -> str:
    return format_table(headings(view), trial_rows(view))


def search_line(view: ExperimentView) -> str:
    """Returns a line such as: 2 of 6 trials ended (1 FAILED), 2 RUNNING, best accuracy 0.972 (trial 1.3)."""
    planned = max(len(view.trials), view.search.num_planned if view.search else 0)
    outcomes = Counter(str(trial.trial.outcome) for trial in view.trials if trial.trial.outcome)
    bad = ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()) if outcome != "COMPLETED")
    words = [f"{outcomes.total()} of {count(planned, 'trial')} ended" + (f" ({bad})" if bad else "")]
    states = Counter(trial.trial.state for trial in view.trials)
    words += [f"{states[state]} {state}" for state in _STATES if states[state]]
    best = best_trial(view)
    if best is not None:
        words.append(f"best {searched_metric(view.experiment)[0]} {_best_validation(best)} (trial {best.trial.id})")
    return ", ".join(words)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns {"net": {"depth": 3}} as {"net.depth": 3}."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def differing(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names whose values differ between points; all of them when there are fewer than two points."""
    names = list(dict.fromkeys(name for point in points for name in point))
    if len(points) < 2:
        return names
    return [name for name in names if len({json.dumps(point.get(name)) for point in points}) > 1]


def format_values(values: Mapping[str, Any]) -> str:
    """Returns text such as: lr 0.001, net.depth 3."""
    return ", ".join(_pairs(values.items())) or "-"


def _pairs(items: Iterable[tuple[str, Any]]) -> list[str]:
    return [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in items]


def _batches(trial: TrialView) -> str:
    if trial.progress is None or trial.progress.batches_total <= 0:
        return str(trial.trial.batches_completed)
    return f"{trial.progress.batches_completed} of {trial.progress.batches_total}"


def _best_validation(trial: TrialView) -> str:
    best = trial.trial.best_validation
    return "-" if best is None else f"{best:.4g}"
