"""PURE: bounds the records of attempts that anybody may make without a known token.

Each address has a budget of records, and all addresses together have one, so that a flood of unknown tokens fills
neither the log nor its buffer. Attempts beyond the budget are counted, and the next record of the address names their
number.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

MAX_ADDRESSES = 4096
# Records in a row, and the seconds in which one comes back.
RECORDS_OF_ADDRESS, SECONDS_OF_ADDRESS = 20, 60.0
RECORDS_OF_ALL, SECONDS_OF_ALL = 500, 1.0


@dataclass(slots=True)
class _Budget:
    spent: float = 0.0
    at: float = 0.0
    num_left_out: int = 0  # attempts since the last record


class RefusalLimit:
    def __init__(self) -> None:
        self._of_all = _Budget()
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()

    def __len__(self) -> int:
        return len(self._budgets)

    def take(self, address: str, now: float) -> int | None:
        """Returns how many attempts of this address were left out since its last record; None if this one is left out
        too. now: monotonic seconds."""
        budget = self._budgets.setdefault(address, _Budget())
        self._budgets.move_to_end(address)
        while len(self._budgets) > MAX_ADDRESSES:
            self._budgets.popitem(last=False)
        spent = _spent(budget, SECONDS_OF_ADDRESS, now)
        of_all = _spent(self._of_all, SECONDS_OF_ALL, now)
        if spent + 1 > RECORDS_OF_ADDRESS or of_all + 1 > RECORDS_OF_ALL:
            budget.num_left_out += 1
            return None
        num_left_out, budget.num_left_out = budget.num_left_out, 0
        budget.spent, budget.at = spent + 1, now
        self._of_all.spent, self._of_all.at = of_all + 1, now
        return num_left_out


def _spent(budget: _Budget, seconds: float, now: float) -> float:
    return max(0.0, budget.spent - (now - budget.at) / seconds)
