"""A custom search: its posts are events like all others, each carried out once, and refused in one line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gangline.domain.experiment import Experiment, Trial
from gangline.domain.resource import Counter
from gangline.domain.search import Search, SearchOperation
from gangline.domain.state import Outcome, SearchOperationKind, State
from gangline.errors import GanglineError
from services.scheduler.searcher import replay
from services.scheduler.state.records import Draft, SchedulerState, get
from services.scheduler.state.rules import Rules
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.search import begin_search, post_operations
from tests.support.scheduler import config_json

RULES = Rules()
SEARCHER = {"name": "custom", "metric": "loss", "max_length": {"batches": 10}}
CLOSE_FIRST = SearchOperation(SearchOperationKind.CLOSE, 1)
SHUT_DOWN = SearchOperation(SearchOperationKind.SHUT_DOWN)


def create(rate: float) -> SearchOperation:
    return SearchOperation(SearchOperationKind.CREATE, hyperparameters_json=json.dumps({"rate": rate}))


def begun(name: str = "custom") -> SchedulerState:
    searcher = SEARCHER if name == "custom" else {**SEARCHER, "name": name}
    experiment = Experiment(1, "e", "ann", config_json(searcher=searcher), "a" * 64, request_id="r1")
    records = SchedulerState.of([Counter(9)])
    draft = Draft(records)
    draft.put(experiment)
    begin_search(draft, experiment, 7, RULES, 1.0)
    records.apply(draft.change, 1)
    return records


def post(records: SchedulerState, number: int, *operations: SearchOperation) -> None:
    change = post_operations(records, 1, number, operations, rules=RULES, now=2.0)
    records.apply(change, records.revision + 1)


def test_posts_create_and_close_trials_and_end_the_search() -> None:
    records = begun()
    assert not records.trials_of(1)
    assert get(records, Experiment, 1).state is State.QUEUED
    post(records, 0, create(0.5), create(0.25))
    assert [json.loads(trial.hyperparameters_json) for trial in records.trials_of(1)] == [{"rate": 0.5}, {"rate": 0.25}]
    post(records, 1, CLOSE_FIRST)
    assert get(records, Trial, "1.1").outcome is Outcome.COMPLETED
    assert get(records, Experiment, 1).state is State.QUEUED
    post(records, 2, SHUT_DOWN)
    assert get(records, Search, 1).is_shut_down
    assert get(records, Experiment, 1).state is State.QUEUED, "the second trial still waits"


def test_a_post_is_carried_out_once() -> None:
    records = begun()
    post(records, 0, create(0.5))
    assert not post_operations(records, 1, 0, [create(0.5)], rules=RULES, now=3.0)
    with pytest.raises(GanglineError, match="post 2 of the search of experiment 1 came before post 1"):
        post(records, 2, create(0.25))


def test_another_leader_makes_the_same_trials_from_the_log() -> None:
    records = begun()
    post(records, 0, *(create(number) for number in range(32)))
    post(records, 1, *(create(number) for number in range(32, 40)))
    searcher = replay.replay(records, get(records, Search, 1), settled_of(get(records, Experiment, 1).config_json))
    assert [searcher.hyperparameters(number) for number in (1, 40)] == [{"rate": 0}, {"rate": 39}]
    assert searcher.num_planned == get(records, Search, 1).num_planned == 40


@pytest.mark.parametrize(
    ("operations", "text"),
    [
        ([SearchOperation(SearchOperationKind.CREATE, hyperparameters_json="[1]")], "are no JSON object"),
        ([SearchOperation(SearchOperationKind.CREATE, hyperparameters_json="{")], "are no JSON object"),
        ([CLOSE_FIRST], "there is no trial 1 to close"),
        ([SHUT_DOWN], "a search without a trial cannot shut down; cancel the experiment"),
        ([create(1)] * 33, "33 operations at once; post at most 32"),
        ([SearchOperation(SearchOperationKind.CREATE, hyperparameters_json=json.dumps({"x": "y" * 20000}))], "16384"),
    ],
)
def test_operations_that_are_refused(operations: list[SearchOperation], text: str) -> None:
    records = begun()
    with pytest.raises(GanglineError, match=text) as refusal:
        post(records, 0, *operations)
    assert refusal.value.code == "search.operation"
    assert get(records, Search, 1).num_posts == 0


def test_only_a_custom_search_that_goes_on_takes_operations() -> None:
    with pytest.raises(GanglineError, match="decides by itself; only `name: custom` takes operations"):
        post(begun("single"), 0, create(1))
    records = begun()
    post(records, 0, create(1), SHUT_DOWN)
    with pytest.raises(GanglineError, match="is over; it takes no operations"):
        post(records, 1, create(2))
    records = begun()
    post(records, 0, create(1))
    ended = replace(get(records, Experiment, 1), state=State.TERMINAL, outcome=Outcome.CANCELED)
    draft = Draft(records)
    draft.put(ended)
    records.apply(draft.change, records.revision + 1)
    with pytest.raises(GanglineError, match="is over"):
        post(records, 1, create(2))
