"""PURE: the searchers by the name that `searcher.name` selects.

Owns single, random and grid. Their trials do not depend on one another. The base class creates them in turn, as many at
a time as allowed, and a closed trial makes room for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gangline.config.hyperparameter import Grid as Points
from gangline.domain.search import SearchEvent
from gangline.domain.state import SearchEventKind
from services.scheduler.searcher.draw import draw
from services.scheduler.searcher.halving import SuccessiveHalving
from services.scheduler.searcher.interface import Brief, CreateTrial, Operation, SearcherType, ShutDown, most_replaced


class InTurn:
    """Creates trials in turn. A trial that fails counts as one of them: the search continues with the next.

    num_replaceable: how many trials with invalid hyperparameters another trial replaces. These do not count.
    """

    listens: ClassVar[frozenset[SearchEventKind]] = frozenset(
        {SearchEventKind.EXPERIMENT_CREATED, SearchEventKind.TRIAL_CLOSED}
    )

    def __init__(self, num_trials: int, max_concurrent_trials: int, num_replaceable: int = 0) -> None:
        self._num_replaceable = num_replaceable
        self._num_trials = num_trials
        self._num_at_once = max_concurrent_trials or num_trials
        self._num_created = 0
        self._num_closed = 0

    @property
    def num_planned(self) -> int:
        return self._num_trials

    def on_event(self, event: SearchEvent) -> Sequence[Operation]:
        if event.kind is SearchEventKind.TRIAL_CLOSED:
            self._num_closed += 1
            if event.is_invalid_hp and self._num_replaceable:
                self._num_replaceable -= 1
                self._num_trials += 1
        if self._num_closed == self._num_trials:
            return [ShutDown()]
        wanted = min(self._num_trials, self._num_closed + self._num_at_once)
        # Closed trials make room, so as many are open as may be.
        operations = [CreateTrial()] * (wanted - self._num_created)
        self._num_created = wanted
        return operations


class Grid(InTurn):
    """Creates one trial for each point of the grid, in its order."""

    def __init__(self, brief: Brief) -> None:
        self._points = Points(brief.hyperparameters)
        super().__init__(self._points.num_points, brief.section.max_concurrent_trials)

    def hyperparameters(self, number: int) -> dict[str, Any]:
        return self._points.point(number)


class Random(InTurn):
    """Creates `max_trials` trials, each with hyperparameters drawn independently of the others."""

    def __init__(self, brief: Brief) -> None:
        num_trials = brief.section.max_trials or 1
        super().__init__(num_trials, brief.section.max_concurrent_trials, most_replaced(num_trials))
        self._brief = brief

    def hyperparameters(self, number: int) -> dict[str, Any]:
        return draw(self._brief.hyperparameters, self._brief.seed, number)


class Single(InTurn):
    """Creates one trial. Ranges among its hyperparameters are drawn once."""

    def __init__(self, brief: Brief) -> None:
        super().__init__(1, 1)
        self._brief = brief

    def hyperparameters(self, number: int) -> dict[str, Any]:
        return draw(self._brief.hyperparameters, self._brief.seed, number)


SEARCHERS: dict[str, SearcherType] = {
    "single": Single,
    "grid": Grid,
    "random": Random,
    "async_halving": SuccessiveHalving,
    "adaptive_asha": SuccessiveHalving,
}
