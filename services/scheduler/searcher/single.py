"""PURE: one trial. Ranges among its hyperparameters are drawn once."""

from __future__ import annotations

from typing import Any

from services.scheduler.searcher.draw import draw
from services.scheduler.searcher.in_turn import InTurn
from services.scheduler.searcher.interface import Brief


class Single(InTurn):
    def __init__(self, brief: Brief) -> None:
        super().__init__(1, 1)
        self._brief = brief

    def hyperparameters(self, number: int) -> dict[str, Any]:
        return draw(self._brief.hyperparameters, self._brief.seed, number)
