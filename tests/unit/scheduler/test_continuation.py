"""Which experiments a commit leaves something to do for."""

from __future__ import annotations

import json
import random
from dataclasses import replace

from gangline.domain.experiment import Experiment
from gangline.domain.state import State as Stage
from services.scheduler.leader.continuation import whole_submits
from services.scheduler.placement import PoolConfig
from services.scheduler.state.records import SchedulerState, StateChange
from services.scheduler.state.rules import Rules
from services.scheduler.transition.end import continue_change
from services.scheduler.transition.search import MAX_CREATED
from services.scheduler.transition.submit_check import admit, submit_experiment

RULES = Rules()


def _submitted(num_trials: int) -> StateChange:
    searcher = {"name": "random", "metric": "loss", "max_trials": num_trials, "max_concurrent_trials": 0}
    document = {"entrypoint": "python3 t.py", "searcher": searcher}
    submitted = {"request_id": "r", "owner": "ann", "config_json": json.dumps(document), "code_sha256": "0"}
    submission, _ = admit(submitted, (PoolConfig("default"),), (), random.Random(1))
    return submit_experiment(SchedulerState(), submission, RULES, 1.0)


def _changed(change: StateChange, **fields: object) -> StateChange:
    """The same with another experiment's record."""
    puts = (replace(put, **fields) if isinstance(put, Experiment) else put for put in change.puts)  # type: ignore[arg-type]
    return StateChange(tuple(puts), change.deletes)


def test_a_submit_that_made_all_of_its_trials_leaves_nothing_to_pursue() -> None:
    for num_trials in (1, MAX_CREATED):
        change = _submitted(num_trials)
        assert whole_submits(change) == {1}
        state = SchedulerState()
        state.apply(change, 1)
        assert not continue_change(state, 1, RULES, 2.0)


def test_a_search_whose_trials_do_not_fit_into_one_transaction_is_pursued() -> None:
    change = _submitted(MAX_CREATED + 1)
    assert whole_submits(change) == frozenset()
    state = SchedulerState()
    state.apply(change, 1)
    assert continue_change(state, 1, RULES, 2.0)


def test_what_a_user_wants_of_a_new_experiment_is_pursued() -> None:
    change = _submitted(2)
    for fields in ({"state": Stage.PAUSED}, {"state": Stage.STOPPING}, {"gives_back": True}):
        assert whole_submits(_changed(change, **fields)) == frozenset()
    without_a_request = StateChange(change.puts[:-1])
    assert whole_submits(without_a_request) == frozenset()
    assert whole_submits(StateChange(tuple(change.all_of(Experiment)))) == frozenset()
