"""Successive halving by itself: brackets, rungs, and each decision against an oracle that only counts."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from gangline.config.searcher import Searcher as Section
from gangline.domain.search import SearchEvent, num_continuing, rung_lengths, total_lengths, trial_lengths
from gangline.domain.settled.reading import settle_values
from gangline.domain.settled.searcher import SettledSearcher
from gangline.domain.state import Outcome, SearchEventKind
from services.scheduler.searcher.halving import SuccessiveHalving
from services.scheduler.searcher.interface import Brief, CloseTrial, CreateTrial, Operation, ShutDown
from tests.support.examples import examples

CREATED = SearchEvent(SearchEventKind.EXPERIMENT_CREATED)
SPACE = {"lr": {"type": "log", "minval": -4, "maxval": -1}}


def _section(**keys: Any) -> SettledSearcher:
    values = {"name": "adaptive_asha", "metric": "loss", "max_trials": 16, "max_length": {"batches": 64}, **keys}
    return settle_values({"searcher": Section.model_validate(values)}).searcher


def _bracket(
    num_trials: int, *, divisor: float = 4, length: int = 64, num_rungs: int = 3, **keys: Any
) -> SettledSearcher:
    given_keys = {"name": "async_halving", "num_rungs": num_rungs, "max_length": length, "divisor": divisor}
    return _section(**given_keys, max_trials=num_trials, max_concurrent_trials=keys.pop("at_once", num_trials), **keys)


def _validated(number: int, units: float, metric: float) -> SearchEvent:
    return SearchEvent(SearchEventKind.VALIDATED, number, int(units), metric, units=units)


def _closed(number: int, outcome: Outcome = Outcome.COMPLETED, *, is_invalid_hp: bool = False) -> SearchEvent:
    return SearchEvent(SearchEventKind.TRIAL_CLOSED, number, outcome=outcome, is_invalid_hp=is_invalid_hp)


class _Search:
    """A searcher, with the trials that it stopped."""

    def __init__(self, section: SettledSearcher) -> None:
        self.searcher = SuccessiveHalving(Brief(section, SPACE, 7))
        self.stopped: list[int] = []
        self.num_created = 0
        self.is_over = False
        self.tell(CREATED)

    def tell(self, event: SearchEvent) -> list[Operation]:
        operations = list(self.searcher.on_event(event))
        self.stopped += [operation.number for operation in operations if isinstance(operation, CloseTrial)]
        self.num_created += sum(isinstance(operation, CreateTrial) for operation in operations)
        self.is_over = any(isinstance(operation, ShutDown) for operation in operations)
        return operations


@pytest.mark.parametrize(
    ("length", "divisor", "num_rungs", "lengths"),
    [
        (9, 3, 3, (1, 3, 9)),
        (10, 2, 4, (1, 2, 5, 10)),
        (9, 3, 1, (9,)),
        (900, 3, 3, (100, 300, 900)),
        (256, 4, 5, (1, 4, 16, 64, 256)),
        (10, 4, 5, (1, 1, 1, 2, 10)),
        (100, 2.5, 3, (16, 40, 100)),
    ],
)
def test_rungs_are_the_length_divided_by_powers_of_the_divisor(
    length: int, divisor: float, num_rungs: int, lengths: tuple[int, ...]
) -> None:
    assert rung_lengths(length, divisor, num_rungs) == lengths


@pytest.mark.parametrize(
    ("keys", "brackets"),
    [
        # 5 rungs at most by max_rungs; log4(1000) + 1 = 5, log4(500) + 1 = 5. Weights 256/5, 64/4, 16/3.
        ({"max_trials": 500, "max_length": 1000, "max_concurrent_trials": 16}, [(354, 6, 5), (110, 5, 4), (36, 5, 3)]),
        ({"mode": "aggressive", "max_trials": 500, "max_length": 1000}, [(500, 16, 5)]),
        # 16 trials allow log4(16) + 1 = 3 rungs. Weights 16/3, 4/2 and 1/1.
        ({"mode": "conservative", "max_trials": 16}, [(12, 6, 3), (3, 3, 2), (1, 1, 1)]),
        ({"max_trials": 16}, [(12, 8, 3), (4, 4, 2)]),
        # A length of 4 allows 2 rungs.
        ({"max_trials": 500, "max_length": 4}, [(334, 8, 2), (166, 8, 1)]),
        ({"max_trials": 1}, [(1, 1, 1)]),
        # Fewer at a time than brackets: one for each. Without a limit: as many as the last bracket has.
        ({"max_trials": 16, "max_concurrent_trials": 1}, [(12, 1, 3), (4, 1, 2)]),
        ({"max_trials": 16, "max_concurrent_trials": 0}, [(12, 4, 3), (4, 4, 2)]),
        ({"max_trials": 20, "bracket_rungs": [2, 4]}, [(18, 8, 4), (2, 2, 2)]),
        ({"max_trials": 100, "divisor": 3, "max_rungs": 3, "max_length": 81}, [(67, 8, 3), (33, 8, 2)]),
        ({"max_length": None, "time_metric": "tokens", "max_time": 16, "mode": "aggressive"}, [(16, 16, 3)]),
    ],
)
def test_brackets_of_a_mode(keys: dict[str, Any], brackets: list[tuple[int, int, int]]) -> None:
    """Computed by hand: each bracket's trials, those at a time, and its rungs."""
    made = _section(**keys).brackets
    assert [(each.num_trials, each.max_concurrent_trials, len(each.rungs)) for each in made] == brackets


def test_async_halving_has_one_bracket() -> None:
    [bracket] = _bracket(20, at_once=5).brackets
    assert (bracket.num_trials, bracket.max_concurrent_trials) == (20, 5)
    assert [rung.length for rung in bracket.rungs] == [4, 16, 64]
    # Without a limit as many as bring one trial to the last rung: divisor ** 2.
    assert _bracket(20, at_once=0).brackets[0].max_concurrent_trials == 16
    assert _bracket(3, at_once=0).brackets[0].max_concurrent_trials == 3


def test_a_stream_by_hand() -> None:
    """Divisor 2, rungs 2, 4 and 8, smaller is better."""
    search = _Search(_bracket(6, divisor=2, length=8, at_once=6))
    told = [
        # Rung 2: (result, best that train on). Alone: rank 1 of 1, best 1.
        _validated(1, 2, 0.5),
        # Rank 2 of 2, best 1: stopped.
        _validated(2, 2, 0.6),
        # Rank 1 of 3, best 1.
        _validated(3, 2, 0.4),
        # Rank 2 of 4, best 2.
        _validated(4, 2, 0.45),
        # Rank 3 of 5 (0.4, 0.45, 0.5, 0.5, 0.6), best 2: stopped; equal to the result of trial 1, and before it.
        _validated(5, 2, 0.5),
        # Between two rungs nothing is decided.
        _validated(1, 3, 9.0),
        # Rung 4: alone; then rank 2 of 2: stopped.
        _validated(1, 4, 0.3),
        _validated(3, 4, 0.35),
        # Two rungs at once: rank 1 of 6 at rung 2, rank 1 of 3 at rung 4.
        _validated(6, 5, 0.1),
        # The last rung ends a trial whatever its rank is.
        _validated(1, 8, 0.9),
        _validated(6, 9, 0.05),
    ]
    closes = []
    for event in told:
        closes.append([operation.number for operation in search.tell(event) if isinstance(operation, CloseTrial)])
    assert closes == [[], [2], [], [], [5], [], [], [3], [], [1], [6]]


def test_a_reason_names_rung_metric_and_rank() -> None:
    search = _Search(_bracket(3, divisor=2, length=8))
    search.tell(_validated(1, 2, 0.5))
    [stop] = search.tell(_validated(2, 2, 0.625))
    [end] = search.tell(_validated(1, 8, 0.25))
    assert stop == CloseTrial(
        2,
        "its searcher stopped it at rung 1 of 3 (2 batches): its loss 0.625 has rank 2 of 2 there, and only the best "
        "trains on",
    )
    assert end == CloseTrial(
        1, "it reached the last rung, rung 3 of 3 (8 batches); its loss 0.25 has rank 1 of 1 there"
    )


def test_larger_may_be_better_and_nan_is_worst_either_way() -> None:
    search = _Search(_bracket(5, divisor=2, length=8, smaller_is_better=False))
    for number, metric in ((1, 0.5), (2, 0.4), (3, math.nan), (4, 0.6), (5, -math.inf)):
        search.tell(_validated(number, 2, metric))
    assert search.stopped == [2, 3, 5]


def test_a_validation_without_a_length_or_after_the_decision_decides_nothing() -> None:
    search = _Search(_bracket(3, divisor=2, length=8))
    search.tell(_validated(1, 2, 0.5))
    assert search.tell(SearchEvent(SearchEventKind.VALIDATED, 2, 4, 9.0)) == []
    search.tell(_validated(2, 2, 0.6))
    assert search.tell(_validated(2, 8, 0.1)) == []
    assert search.stopped == [2]


def test_a_failed_trial_is_the_worst_of_its_next_rung() -> None:
    search = _Search(_bracket(5, divisor=2, length=8))
    search.tell(_validated(1, 2, 0.5))
    for number in (2, 3):
        search.tell(_closed(number, Outcome.FAILED))
    # Rank 2 of 4, best 2: without the failed ones it would be rank 2 of 2, and stopped.
    search.tell(_validated(4, 2, 0.6))
    assert search.stopped == []


def test_a_trial_that_ends_by_itself_leaves_no_result() -> None:
    search = _Search(_bracket(4, divisor=2, length=8))
    search.tell(_validated(1, 2, 0.5))
    for number in (2, 3):
        search.tell(_closed(number))
    search.tell(_validated(4, 2, 0.6))
    assert search.stopped == [4]


def test_invalid_hyperparameters_take_their_results_away_and_are_replaced() -> None:
    search = _Search(_bracket(2, divisor=2, length=8))
    search.tell(_validated(1, 2, 0.5))
    assert search.tell(_closed(1, Outcome.FAILED, is_invalid_hp=True)) == [CreateTrial()]
    assert search.searcher.num_planned == 3
    search.tell(_validated(2, 2, 0.7))
    assert search.stopped == [], "the result of trial 1 is gone"


def test_a_search_of_invalid_points_alone_ends() -> None:
    search = _Search(_bracket(2, divisor=2, length=8))
    number = 0
    while not search.is_over:
        number += 1
        search.tell(_closed(number, Outcome.FAILED, is_invalid_hp=True))
    assert (search.num_created, number) == (12, 12)


def test_a_closed_trial_makes_room_in_its_own_bracket() -> None:
    search = _Search(_section(max_trials=16, max_concurrent_trials=4))
    # Trials 1 and 2 are of the bracket of 12, 3 and 4 of the bracket of 4.
    assert search.num_created == 4
    numbers = [3, 4]
    for _ in range(4):
        search.tell(_closed(numbers.pop(0)))
        numbers.append(search.num_created)
    assert search.num_created == 6, "the second bracket has all of its 4 trials"
    search.tell(_closed(1))
    assert search.num_created == 7


def test_hyperparameters_depend_on_seed_and_number_alone() -> None:
    one, other = _Search(_section()), _Search(_section(mode="aggressive"))
    assert one.searcher.hyperparameters(5) == other.searcher.hyperparameters(5)
    assert one.searcher.hyperparameters(5) != one.searcher.hyperparameters(6)


@dataclass
class _Oracle:
    """The published rule for one bracket, by counting: no order is kept."""

    lengths: tuple[int, ...]
    divisor: float
    results: dict[int, list[float]] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)

    def is_stopped(self, number: int, units: float, metric: float) -> bool:
        if number in self.over:
            return False
        for index in range(self.reached.get(number, 0), len(self.lengths)):
            if units < self.lengths[index]:
                return False
            own = self.results.setdefault(index, [])
            num_better = sum(other < metric for other in own)
            own.append(metric)
            self.reached[number] = index + 1
            if index + 1 == len(self.lengths) or num_better >= max(math.floor(len(own) / self.divisor), 1):
                self.over.add(number)
                return True
        return False


@given(
    st.floats(1.1, 5),
    st.integers(1, 4),
    st.integers(1, 100),
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 110), st.integers(0, 6)), max_size=60),
)
@settings(max_examples=examples(150))
def test_every_decision_is_that_of_the_oracle(
    divisor: float, num_rungs: int, length: int, stream: list[tuple[int, int, int]]
) -> None:
    search = _Search(_bracket(12, divisor=divisor, length=length, num_rungs=num_rungs))
    oracle = _Oracle(rung_lengths(length, divisor, num_rungs), divisor)
    for number, units, metric in stream:
        before = len(search.stopped)
        search.tell(_validated(number, units, metric / 4))
        assert (len(search.stopped) > before) == oracle.is_stopped(number, units, metric / 4)


def test_the_outlook_bounds_what_streams_do() -> None:
    section = _bracket(64, divisor=4, length=64)
    [bracket] = section.brackets
    assert [(rung.min_trials, rung.max_trials) for rung in bracket.rungs] == [(64, 64), (1, 64), (1, 64)]
    assert total_lengths([bracket])[0] == 64 * 4 + 60
    assert total_lengths([bracket])[2] == 64 * 64
    # Better and better, worse and worse: the extremes are reached.
    for direction, num_long in ((-1, 64), (1, 1)):
        search = _Search(section)
        for number in range(1, 65):
            for units in (4, 16, 64):
                search.tell(_validated(number, units, direction * number))
        oracle = [number for number in range(1, 65) if search.searcher._trials[number - 1].rung == 3]
        assert len(oracle) == num_long
    expected = [rung.expected_trials for rung in bracket.rungs]
    assert expected[0] > expected[1] > expected[2] >= 1
    lengths = trial_lengths([bracket])
    assert sum(count for count, _ in lengths) == 64
    assert sum(count * length for count, length in lengths) == total_lengths([bracket])[1]


def test_the_expected_number_is_the_mean_over_all_orders() -> None:
    section = _bracket(6, divisor=2, length=8, num_rungs=2)
    nums_continuing = []
    for order in itertools.permutations(range(6)):
        search = _Search(section)
        for number, metric in enumerate(order, 1):
            search.tell(_validated(number, 4, float(metric)))
        nums_continuing.append(6 - len(search.stopped))
    mean = sum(nums_continuing) / len(nums_continuing)
    assert mean == pytest.approx(sum(num_continuing(count, 2) / count for count in range(1, 7)))
    assert section.brackets[0].rungs[1].expected_trials == round(mean)


def test_the_same_events_give_the_same_answers() -> None:
    events = [CREATED, _validated(1, 2, 0.5), _validated(2, 2, 0.6), _closed(2), _validated(1, 8, 0.1), _closed(1)]
    answers = []
    for _ in range(2):
        searcher = SuccessiveHalving(Brief(_bracket(3, divisor=2, length=8, at_once=2), SPACE, 7))
        answers.append(json.dumps([[repr(each) for each in searcher.on_event(event)] for event in events]))
    assert answers[0] == answers[1]
