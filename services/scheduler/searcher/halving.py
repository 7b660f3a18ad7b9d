"""PURE: the searchers `async_halving` and `adaptive_asha`: asynchronous successive halving that stops trials (ASHA).

The rule is that of Determined 0.38. A bracket has rungs, which are lengths of training: the whole
length divided by powers of `divisor`. A validation at or after a rung is a result of that rung. It is ranked among the
results that the rung already has. The trial trains on if its rank is within the best 1 / divisor of them, its own
included, rounded down and at least 1; otherwise it is stopped. Of equal results, the newest ranks first. A validation
that has passed several rungs is a result of each of them, until one of them stops the trial. A trial that reaches the
last rung has trained for the whole length, and ends. A stopped trial never continues.

A trial that fails or is killed counts as the worst result of the rung that it has not reached. A trial with invalid
hyperparameters takes all of its results away again, and another trial takes its place.

`async_halving` has one bracket. `adaptive_asha` has several with different numbers of rungs, which share the trials:
gangline.domain.search divides them. A bracket begins with as many trials as it may have at a time, and each trial that
has ended makes room for the next.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gangline.domain.search import SearchBracket, SearchEvent, num_continuing
from gangline.domain.state import Outcome, SearchEventKind
from services.scheduler.searcher.draw import draw
from services.scheduler.searcher.interface import Brief, CloseTrial, CreateTrial, Operation, ShutDown, most_replaced


class SuccessiveHalving:
    """Stops trials at the rungs of their brackets."""

    listens: ClassVar[frozenset[SearchEventKind]] = frozenset(
        {SearchEventKind.EXPERIMENT_CREATED, SearchEventKind.VALIDATED, SearchEventKind.TRIAL_CLOSED}
    )

    def __init__(self, brief: Brief) -> None:
        self._brief = brief
        self._brackets = [_Bracket(bracket, brief.section.divisor) for bracket in brief.section.brackets]
        # By trial number, from 1 on.
        self._trials: list[_Trial] = []
        self._num_closed = 0
        self._num_replaceable = most_replaced(self.num_planned)

    @property
    def num_planned(self) -> int:
        return sum(bracket.num_trials for bracket in self._brackets)

    def hyperparameters(self, number: int) -> dict[str, Any]:
        return draw(self._brief.hyperparameters, self._brief.seed, number)

    def on_event(self, event: SearchEvent) -> Sequence[Operation]:
        match event.kind:
            case SearchEventKind.VALIDATED:
                return self._on_validated(event)
            case SearchEventKind.TRIAL_CLOSED:
                self._on_closed(event)
        if self._num_closed == self.num_planned:
            return [ShutDown()]
        return [self._create(bracket) for bracket in self._brackets for _ in range(bracket.num_missing)]

    def _create(self, bracket: _Bracket) -> CreateTrial:
        bracket.num_created += 1
        self._trials.append(_Trial(bracket))
        return CreateTrial()

    def _on_validated(self, event: SearchEvent) -> Sequence[Operation]:
        """Decides at the rungs that the validation has reached. A validation that no length comes with decides
        nothing."""
        trial = self._trials[event.trial_number - 1]
        if trial.is_over or event.metric is None or event.units is None:
            return []
        bracket = trial.bracket
        value = event.metric if self._brief.section.smaller_is_better else -event.metric
        while trial.rung < len(bracket.rungs) and event.units >= bracket.rungs[trial.rung].length:
            rung = bracket.rungs[trial.rung]
            rank = rung.insert(trial, value)
            trial.rung += 1
            num_best = num_continuing(len(rung.values), bracket.divisor)
            is_last = trial.rung == len(bracket.rungs)
            if is_last or rank > num_best:
                trial.is_over = True
                reason = self._reason(event, trial, rank, None if is_last else num_best)
                return [CloseTrial(event.trial_number, reason)]
        return []

    def _reason(self, event: SearchEvent, trial: _Trial, rank: int, num_best: int | None) -> str:
        """Returns a clause for the trial's users. num_best: None at the last rung."""
        rung, section = trial.bracket.rungs[trial.rung - 1], self._brief.section
        where = f"rung {trial.rung} of {len(trial.bracket.rungs)} ({rung.length} {section.unit_name})"
        what = f"{section.metric} {event.metric:.6g} has rank {rank} of {len(rung.values)} there"
        if num_best is None:
            return f"it reached the last rung, {where}; its {what}"
        best = "only the best trains on" if num_best == 1 else f"the best {num_best} train on"
        return f"its searcher stopped it at {where}: its {what}, and {best}"

    def _on_closed(self, event: SearchEvent) -> None:
        trial = self._trials[event.trial_number - 1]
        bracket = trial.bracket
        self._num_closed += 1
        bracket.num_closed += 1
        if event.is_invalid_hp:
            trial.withdraw()
            if self._num_replaceable:
                self._num_replaceable -= 1
                bracket.num_trials += 1
        elif not trial.is_over and event.outcome is not Outcome.COMPLETED:
            bracket.rungs[trial.rung].insert(trial, math.inf)
        trial.is_over = True


@dataclass(slots=True)
class _Rung:
    """A rung of a bracket."""

    length: int
    values: list[float] = field(default_factory=list)  # all results, ascending, as if smaller were better

    def insert(self, trial: _Trial, value: float) -> int:
        """Adds a result and returns its rank, from 1 on. NaN is worse than every number."""
        is_number = not math.isnan(value)
        value = value if is_number else math.inf
        index = bisect_left(self.values, value) if is_number else bisect_right(self.values, value)
        self.values.insert(index, value)
        trial.results.append((self, value))
        return index + 1


class _Bracket:
    """num_trials: to create in all, which grows with replaced trials."""

    def __init__(self, bracket: SearchBracket, divisor: float) -> None:
        self.rungs = [_Rung(rung.length) for rung in bracket.rungs]
        self.divisor = divisor
        self.num_trials = bracket.num_trials
        self.num_created = 0
        self.num_closed = 0
        self._num_at_once = bracket.max_concurrent_trials

    @property
    def num_missing(self) -> int:
        """Returns how many trials to create now."""
        return min(self.num_trials, self.num_closed + self._num_at_once) - self.num_created


@dataclass(slots=True)
class _Trial:
    """A trial of the search."""

    bracket: _Bracket
    rung: int = 0  # index of the next rung to reach
    is_over: bool = False  # whether it was told to end, or has ended
    # rungs that have a result of the trial, with that result
    results: list[tuple[_Rung, float]] = field(default_factory=list)

    def withdraw(self) -> None:
        """Removes the trial's results. Of equal results any one may go."""
        for rung, value in self.results:
            del rung.values[bisect_left(rung.values, value)]
        self.results.clear()
