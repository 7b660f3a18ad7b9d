"""PURE: the searchers by the name that `searcher.name` selects.

Owns single, random and grid, whose trials do not depend on one another, and custom, which a user's process decides.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from gangline.config.hyperparameter import Grid as Points
from gangline.domain.search import SearchEvent, SearchOperation
from gangline.domain.state import SearchEventKind, SearchOperationKind
from services.scheduler.searcher.draw import draw
from services.scheduler.searcher.halving import SuccessiveHalving
from services.scheduler.searcher.interface import (
    Brief,
    CloseTrial,
    CreateTrial,
    InTurn,
    Operation,
    SearcherType,
    ShutDown,
    most_replaced,
)
from services.scheduler.searcher.sampled import Sampled


class GridSearcher(InTurn):
    """Creates one trial for each point of the grid, in its order."""

    def __init__(self, brief: Brief) -> None:
        self._points = Points(brief.hyperparameters)
        super().__init__(self._points.num_points, brief.section.max_concurrent_trials)

    def hyperparameters(self, number: int) -> dict[str, Any]:
        return self._points.point(number)


class RandomSearcher(InTurn):
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


class Custom:
    """Carries out what a user's process asks for. Its posts are events, so they are on record like all others."""

    listens: ClassVar[frozenset[SearchEventKind]] = frozenset(
        {
            SearchEventKind.EXPERIMENT_CREATED,
            SearchEventKind.TRIAL_CREATED,
            SearchEventKind.VALIDATED,
            SearchEventKind.TRIAL_CLOSED,
            SearchEventKind.OPERATED,
        }
    )

    def __init__(self, brief: Brief) -> None:
        self._points: list[dict[str, Any]] = []

    @property
    def num_planned(self) -> int:
        return len(self._points)

    def on_event(self, event: SearchEvent) -> Sequence[Operation]:
        return [self._carry_out(operation) for operation in event.operations]

    def hyperparameters(self, number: int) -> dict[str, Any]:
        return self._points[number - 1]

    def _carry_out(self, operation: SearchOperation) -> Operation:
        match operation.kind:
            case SearchOperationKind.CREATE:
                self._points.append(json.loads(operation.hyperparameters_json))
                return CreateTrial()
            case SearchOperationKind.CLOSE:
                return CloseTrial(operation.trial_number, "its custom search has seen enough of it")
            case SearchOperationKind.SHUT_DOWN:
                return ShutDown()


SEARCHERS: dict[str, SearcherType] = {
    "single": Single,
    "grid": GridSearcher,
    "random": RandomSearcher,
    "async_halving": SuccessiveHalving,
    "adaptive_asha": SuccessiveHalving,
    "tpe": Sampled,
    "optuna": Sampled,
    "custom": Custom,
}
