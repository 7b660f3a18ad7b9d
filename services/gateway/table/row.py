"""PURE: the rows of experiments and of trials. A row joins records, and parses their texts when a field needs them.

A row is made anew when one of its records changed, so what it has parsed stays true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from pydantic_core import from_json

from gangline.domain.experiment import Experiment, Trial
from gangline.domain.search import Search
from gangline.domain.settled.reading import settle_values
from gangline.domain.settled.record import Settled
from gangline.domain.state import State


class ExperimentRow:
    """One experiment with its trials, which are in the order of their numbers."""

    def __init__(self, experiment: Experiment, trials: Sequence[Trial], search: Search | None) -> None:
        self.id = experiment.id
        self.experiment = experiment
        self.trials = trials
        self.search = search

    @cached_property
    def settled(self) -> Settled:
        return settle_values(parsed(self.experiment.config_json), "searcher", "resources", "description", "entrypoint")

    @cached_property
    def best_trial(self) -> Trial | None:
        """The trial with the best validation; without any validation the newest trial, None without a trial."""
        if len(self.trials) < 2:
            return self.trials[0] if self.trials else None
        validated = [trial for trial in self.trials if trial.best_validation is not None]
        if not validated:
            return self.trials[-1]
        sign = 1 if self.settled.searcher.smaller_is_better else -1
        return min(validated, key=lambda trial: sign * (trial.best_validation or 0.0))

    @cached_property
    def hyperparameters(self) -> Mapping[str, Any]:
        return parsed(self.best_trial.hyperparameters_json) if self.best_trial is not None else {}

    @cached_property
    def validation(self) -> Mapping[str, Any]:
        return parsed(self.best_trial.validation_json) if self.best_trial is not None else {}

    @property
    def num_planned(self) -> int:
        return max(len(self.trials), self.search.num_planned if self.search is not None else 0)

    @property
    def num_ended(self) -> int:
        return sum(trial.state is State.TERMINAL for trial in self.trials)

    @property
    def progress(self) -> float | None:
        """The share of the work that is done, from 0 to 1; None while the length is not known."""
        if self.experiment.state is State.TERMINAL:
            return 1.0
        total = sum(trial.batches_total for trial in self.trials)
        if not total or not all(trial.batches_total for trial in self.trials) or not self.num_planned:
            return None
        share = sum(trial.batches_completed for trial in self.trials) / total
        return min(1.0, share * len(self.trials) / self.num_planned)


class TrialRow:
    """One trial with its experiment's row."""

    def __init__(self, trial: Trial, home: ExperimentRow) -> None:
        self.id = trial.id
        self.trial = trial
        self.home = home

    @property
    def state(self) -> State:
        """The state that views show: a waiting trial of a paused experiment is PAUSED."""
        is_paused = self.home.experiment.state is State.PAUSED and self.trial.state is State.QUEUED
        return State.PAUSED if is_paused else self.trial.state

    @cached_property
    def hyperparameters(self) -> Mapping[str, Any]:
        return parsed(self.trial.hyperparameters_json)

    @cached_property
    def validation(self) -> Mapping[str, Any]:
        return parsed(self.trial.validation_json)

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        return parsed(self.trial.metadata_json)


def parsed(text: str) -> Mapping[str, Any]:
    """Returns the mapping in a stored text; an empty one for a text that holds none."""
    try:
        document = from_json(text) if text else {}
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
