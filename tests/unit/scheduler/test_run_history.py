"""The run times that the leader learns from ended trials."""

from __future__ import annotations

import json

from gangline.domain.allocation import Timeline
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.state import Outcome
from gangline.domain.state import State as Stage
from services.scheduler.state.records import SchedulerState, StateChange
from services.scheduler.state.run_history import FEWEST_ENDED, NUM_RECALLED, NUM_REMEMBERED, RunHistory, newest_ended


def make_state() -> SchedulerState:
    """Experiment 1 is of the pool default, experiment 2 of another."""
    state = SchedulerState()
    for number, pool in ((1, ""), (2, "large")):
        config = {
            "name": "n",
            "entrypoint": "m:T",
            "searcher": {"name": "single", "metric": "loss", "max_length": 1},
            "resources": {"resource_pool": pool},
        }
        state.apply(StateChange(puts=(Experiment(number, "n", "alice", json.dumps(config), "b" * 64),)), number)
    return state


def ended(number: int, seconds: float, experiment_id: int = 1) -> Trial:
    return Trial(
        f"{experiment_id}.{number}",
        experiment_id,
        number,
        state=Stage.TERMINAL,
        outcome=Outcome.COMPLETED,
        ended_at=1000.0 + seconds,
        timeline=Timeline(queued_at=900.0, placed_at=1000.0),
    )


def test_the_median_by_pool_once_enough_have_ended() -> None:
    history, state = RunHistory(), make_state()
    history.learn(state, [ended(number, 10.0 * number) for number in range(1, FEWEST_ENDED)])
    assert history.typical_run_seconds == {}
    history.learn(state, [ended(9, 1000.0), ended(1, 7.0, experiment_id=2)])
    assert history.typical_run_seconds == {"default": 30.0}


def test_only_what_ran_and_has_ended_counts() -> None:
    history, state = RunHistory(), make_state()
    never_placed = Trial("1.2", 1, 2, state=Stage.TERMINAL, outcome=Outcome.CANCELED, ended_at=5.0)
    running = Trial("1.3", 1, 3, state=Stage.RUNNING, timeline=Timeline(placed_at=1.0))
    history.learn(state, [never_placed, running] * FEWEST_ENDED)
    assert history.typical_run_seconds == {}


def test_what_ended_long_ago_is_forgotten() -> None:
    history, state = RunHistory(), make_state()
    history.learn(state, [ended(1, 3600.0)] * NUM_REMEMBERED)
    history.learn(state, [ended(2, 60.0)] * NUM_REMEMBERED)
    assert history.typical_run_seconds == {"default": 60.0}


def test_a_new_leader_recalls_the_newest_in_their_order() -> None:
    running = Trial("1.9", 1, 9, state=Stage.RUNNING)
    trials = [ended(number, float(number)) for number in range(NUM_RECALLED + 5)]
    assert newest_ended([running, *reversed(trials)]) == trials[5:]
