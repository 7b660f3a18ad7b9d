"""PURE: bounds the records of refused attempts, which cost a caller nothing but the call.

Each caller has a budget of records, and all callers together have one, so that a flood of refusals fills neither the
log nor its buffer. A caller without a known token is known by its address, others by their names. Attempts beyond the
budget are counted, and the next record of the caller names their number.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

MAX_CALLERS = 4096


@dataclass(frozen=True, slots=True)
class Rates:
    """Records in a row, and the seconds in which one comes back, of each caller and of all together."""

    of_one: int
    seconds_of_one: float
    of_all: int
    seconds_of_all: float


# Callers without a known token.
OF_ADDRESSES = Rates(20, 60.0, 500, 1.0)
# Users, and the tokens of services and trials.
OF_ACTORS = Rates(200, 1.0, 5000, 0.05)


@dataclass(slots=True)
class _Budget:
    spent: float = 0.0
    at: float = 0.0
    num_left_out: int = 0  # attempts since the last record


class RefusalLimit:
    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._of_all = _Budget()
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()

    def __len__(self) -> int:
        return len(self._budgets)

    def take(self, caller: str, now: float) -> int | None:
        """Returns how many attempts of this caller were left out since its last record; None if this one is left out
        too. now: monotonic seconds."""
        rates = self._rates
        budget = self._budgets.setdefault(caller, _Budget())
        self._budgets.move_to_end(caller)
        while len(self._budgets) > MAX_CALLERS:
            self._budgets.popitem(last=False)
        spent = _spent(budget, rates.seconds_of_one, now)
        of_all = _spent(self._of_all, rates.seconds_of_all, now)
        if spent + 1 > rates.of_one or of_all + 1 > rates.of_all:
            budget.num_left_out += 1
            return None
        num_left_out, budget.num_left_out = budget.num_left_out, 0
        budget.spent, budget.at = spent + 1, now
        self._of_all.spent, self._of_all.at = of_all + 1, now
        return num_left_out


def _spent(budget: _Budget, seconds: float, now: float) -> float:
    return max(0.0, budget.spent - (now - budget.at) / seconds)
