"""PURE: the searchers by the name that `searcher.name` selects.

Owns single, random and grid, whose trials do not depend on one another.
"""

from __future__ import annotations

from typing import Any

from gangline.config.hyperparameter import Grid as Points
from services.scheduler.searcher.draw import draw
from services.scheduler.searcher.halving import SuccessiveHalving
from services.scheduler.searcher.interface import Brief, InTurn, SearcherType, most_replaced
from services.scheduler.searcher.sampled import Sampled


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
    "tpe": Sampled,
    "optuna": Sampled,
}
