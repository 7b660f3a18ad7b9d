"""PURE: `max_trials` trials, each with hyperparameters drawn independently of the others."""

from __future__ import annotations

from typing import Any

from services.scheduler.searcher.draw import draw
from services.scheduler.searcher.in_turn import InTurn
from services.scheduler.searcher.interface import Brief


class Random(InTurn):
    def __init__(self, brief: Brief) -> None:
        super().__init__(brief.section.max_trials or 1, brief.section.max_concurrent_trials)
        self._brief = brief

    def hyperparameters(self, number: int) -> dict[str, Any]:
        return draw(self._brief.hyperparameters, self._brief.seed, number)
