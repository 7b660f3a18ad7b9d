"""PURE: one trial for each point of the grid, in its order."""

from __future__ import annotations

from typing import Any

from gangline.config.grid import Grid as Points
from services.scheduler.searcher.in_turn import InTurn
from services.scheduler.searcher.interface import Brief


class Grid(InTurn):
    def __init__(self, brief: Brief) -> None:
        self._points = Points(brief.hyperparameters)
        super().__init__(self._points.num_points, brief.section.max_concurrent_trials)

    def hyperparameters(self, number: int) -> dict[str, Any]:
        return self._points.point(number)
