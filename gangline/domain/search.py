"""PURE: the state of an experiment's search, the events that its searcher received, and its preview. See types.proto.

Owns the arithmetic of asynchronous successive halving that needs no events: brackets, rungs, and how many trials reach
each rung. The searcher in services.scheduler.searcher decides by the same rungs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gangline.domain.state import Outcome, SearchEventKind, SearchOperationKind


@dataclass(frozen=True, slots=True)
class Search:
    experiment_id: int
    seed: int  # the same seed and the same events give the same trials
    num_events: int = 0
    num_wanted: int = 0  # trials that the searcher has asked for so far
    num_planned: int = 0  # trials that it will ask for in all, as far as is known
    is_shut_down: bool = False  # whether it asks for no more trials
    source_checkpoint_id: str = ""
    num_posts: int = 0


@dataclass(frozen=True, slots=True)
class SearchOperation:
    kind: SearchOperationKind
    trial_number: int = 0
    hyperparameters_json: str = ""


@dataclass(frozen=True, slots=True)
class SearchEvent:
    kind: SearchEventKind
    trial_number: int = 0
    batches_completed: int = 0
    metric: float | None = None
    outcome: Outcome | None = None
    units: float | None = None
    is_invalid_hp: bool = False
    operations: tuple[SearchOperation, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchLog:
    """One page of the events, in their order. id distinguishes it from all other pages."""

    experiment_id: int
    page: int
    events: tuple[SearchEvent, ...] = ()

    @property
    def id(self) -> str:
        return search_log_id(self.experiment_id, self.page)


@dataclass(frozen=True, slots=True)
class SearchRung:
    """One rung, and how many trials reach it.

    The counts hold if each trial is better than all before it (max), if each is worse (min), and if trials come in
    random order (expected).
    """

    length: int  # length after which it decides, in the searcher's unit
    min_trials: int  # trials that reach it if each one is worse than all before it
    expected_trials: int  # trials that reach it if they come in random order
    max_trials: int  # trials that reach it if each one is better than all before it


@dataclass(frozen=True, slots=True)
class SearchBracket:
    """One bracket of a search by successive halving."""

    num_trials: int
    max_concurrent_trials: int  # trials of the bracket that run at a time
    rungs: tuple[SearchRung, ...] = ()  # ascending; the last one is the whole length


@dataclass(frozen=True, slots=True)
class SearchPreview:
    """The trials that a search would make. The totals are the lengths of all trials together, 0 if they are unknown."""

    searcher: str
    seed: int
    num_trials: int
    max_concurrent_trials: int  # 0 for no limit
    hyperparameters_json: tuple[str, ...] = ()  # hyperparameters of the first trials, in their order
    unit: str = ""  # unit of all lengths; empty if the configuration names none
    brackets: tuple[SearchBracket, ...] = ()  # brackets of a search by successive halving
    min_total: int = 0  # least length of all trials together; 0 if unknown
    expected_total: int = 0  # expected length of all trials together; 0 if unknown
    max_total: int = 0  # greatest length of all trials together; 0 if unknown
    slots_per_trial: int = 0
    pace_trial_id: str = ""  # the newest comparable trial; empty for none
    seconds_per_unit: float = 0.0  # pace of that trial

    def slot_hours(self, total: int) -> float:
        """Returns what trials of this length together hold of slots, at the pace of the comparable trial."""
        return total * self.seconds_per_unit * self.slots_per_trial / 3600


def search_log_id(experiment_id: int, page: int) -> str:
    """Returns the id of a page. page counts from 0."""
    return f"{experiment_id}/{page:06d}"


def rung_lengths(length: int, divisor: float, num_rungs: int) -> tuple[int, ...]:
    """Returns the rungs of a bracket: length / divisor ** k, rounded down, at least 1; the last one is the length."""
    shorter = (max(int(length / divisor**power), 1) for power in range(num_rungs - 1, 0, -1))
    return (*shorter, length)


def count_rungs(mode: str, max_rungs: int, divisor: float, length: int, max_trials: int) -> list[int]:
    """Returns the number of rungs of each bracket, as the mode selects them.

    A bracket has at most max_rungs rungs, and no more than length and max_trials can be divided. `aggressive` has one
    bracket with all rungs. `conservative` has one bracket for each number of rungs. `standard` has the upper half.
    """
    # The logarithms are rounded as Determined rounds them, so that the same file has the same brackets.
    most = min(max_rungs, *(int(math.log(number) / math.log(divisor)) + 1 for number in (length, max_trials)))
    first = {"aggressive": most, "standard": (most - 1) // 2 + 1, "conservative": 1}[mode]
    return list(range(first, most + 1))


def divide_search(
    numbers_of_rungs: Sequence[int], length: int, divisor: float, max_trials: int, max_concurrent_trials: int
) -> tuple[SearchBracket, ...]:
    """Divides a search into brackets, the one that stops trials most eagerly first.

    Each bracket gets about the same share of the training: its weight is divisor ** (rungs - 1) / rungs. Every bracket
    has at least 1 trial, and the first one gets the rest of max_trials. max_concurrent_trials is divided evenly, the
    rest to the first brackets; every bracket has at least 1. Without a limit each bracket runs as many at a time as the
    last bracket has trials, and at least `divisor`.
    """
    rungs = sorted(numbers_of_rungs, reverse=True)
    weights = [divisor ** (number - 1) / number for number in rungs]
    counts = [max(int(weight / sum(weights) * max_trials), 1) for weight in weights]
    counts[0] += max(max_trials - sum(counts), 0)
    if max_concurrent_trials:
        share, rest = divmod(max(max_concurrent_trials, len(rungs)), len(rungs))
    else:
        share, rest = max(counts[-1], int(divisor)), 0
    return tuple(
        make_bracket(rung_lengths(length, divisor, number), divisor, count, share + (index < rest))
        for index, (number, count) in enumerate(zip(rungs, counts, strict=True))
    )


def make_bracket(lengths: Sequence[int], divisor: float, num_trials: int, max_concurrent_trials: int) -> SearchBracket:
    """Returns a bracket with the numbers of trials that reach each rung, if no trial fails. max_concurrent_trials: 0
    for as many as let one trial reach the last rung."""
    at_once = max_concurrent_trials or max(1, int(divisor ** (len(lengths) - 1)))
    rungs: list[SearchRung] = []
    expected = num_trials
    for length in lengths:
        rungs.append(SearchRung(length, 1 if rungs else num_trials, expected, num_trials))
        expected = round(sum(num_continuing(count, divisor) / count for count in range(1, expected + 1)))
    return SearchBracket(num_trials, min(at_once, num_trials), tuple(rungs))


def num_continuing(num_results: int, divisor: float) -> int:
    """Returns how many of the best results of a rung train on: 1 / divisor of them, rounded down, at least 1."""
    return max(int(num_results / divisor), 1)


def trial_lengths(brackets: Iterable[SearchBracket]) -> tuple[tuple[int, int], ...]:
    """Returns how many trials a search by successive halving is expected to train for which length, as pairs
    (num_trials, length)."""
    pairs: list[tuple[int, int]] = []
    for bracket in brackets:
        reached = [*(rung.expected_trials for rung in bracket.rungs), 0]
        ended = (here - further for here, further in itertools.pairwise(reached))
        pairs += [(count, rung.length) for count, rung in zip(ended, bracket.rungs, strict=True) if count]
    return tuple(pairs)


def total_lengths(brackets: Iterable[SearchBracket]) -> tuple[int, int, int]:
    """Returns the lengths of all trials together: at least, expected and at most."""
    totals = [0, 0, 0]
    for bracket in brackets:
        before = 0
        for rung in bracket.rungs:
            counts = (rung.min_trials, rung.expected_trials, rung.max_trials)
            totals = [total + count * (rung.length - before) for total, count in zip(totals, counts, strict=True)]
            before = rung.length
    return totals[0], totals[1], totals[2]
