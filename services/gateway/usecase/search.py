"""PURE: why an experiment makes no further trial now, for its view."""

from __future__ import annotations

from collections.abc import Sequence

from gangline.domain.allocation import Reason
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.search import Search
from gangline.domain.state import ReasonCode, State


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
