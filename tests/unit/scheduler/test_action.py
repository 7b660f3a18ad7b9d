"""One table of all states of an experiment and all actions of users: the state after each, or the code of the refusal.

An action that is repeated changes nothing more, in every state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gangline.domain.allocation import Allocation, Member, Request
from gangline.domain.experiment import Experiment, ResourceChange, RetentionChange, TextChange, Trial
from gangline.domain.resource import Counter
from gangline.domain.search import Search
from gangline.domain.state import DeletionStage, ExitKind, Outcome, State, TaskKind
from gangline.errors import GanglineError
from services.scheduler.state.records import Records, SchedulerState, StateChange, get
from services.scheduler.state.rules import Rules
from services.scheduler.transition.end import (
    activate_experiment,
    cancel_experiment,
    kill_experiment,
    kill_trial,
    pause_experiment,
)
from services.scheduler.transition.project.text_change import change_texts
from services.scheduler.transition.queue_move import update_resources
from services.scheduler.transition.removal import archive_experiment, delete_experiment, unarchive_experiment
from services.scheduler.transition.restart import continue_experiment
from services.scheduler.transition.retention_change import change_retention
from tests.support.scheduler import config_json

_RULES = Rules()
_BASE = Experiment(1, "e", "ann", config_json(), "a" * 64, request_id="r1")
_ENDED = replace(_BASE, state=State.TERMINAL, outcome=Outcome.COMPLETED, ended_at=1.0)
_EXPERIMENTS = {
    "QUEUED": _BASE,
    "STARTING": replace(_BASE, state=State.STARTING),
    "RUNNING": replace(_BASE, state=State.RUNNING),
    "PAUSED": replace(_BASE, state=State.PAUSED, reason="paused by ann"),
    "canceling": replace(_BASE, state=State.STOPPING, stop_kind=ExitKind.PREEMPTED, reason="canceled by ann"),
    "killing": replace(_BASE, state=State.STOPPING, stop_kind=ExitKind.KILLED, reason="killed by ann"),
    "ended": _ENDED,
    "archived": replace(_ENDED, archived=True),
    "deleting": replace(_ENDED, deletion=DeletionStage.FILES),
}
_ACTIONS: dict[str, Callable[[Records], StateChange]] = {
    "pause": lambda records: pause_experiment(records, 1, "paused by bob", _RULES, 5.0),
    "activate": lambda records: activate_experiment(records, 1, _RULES, 5.0),
    "cancel": lambda records: cancel_experiment(records, 1, "canceled by bob", _RULES, 5.0),
    "kill": lambda records: kill_experiment(records, 1, "killed by bob", _RULES, 5.0),
    "kill trial": lambda records: kill_trial(records, "1.1", "killed by bob", _RULES, 5.0),
    "archive": lambda records: archive_experiment(records, 1),
    "unarchive": lambda records: unarchive_experiment(records, 1),
    "delete": lambda records: delete_experiment(records, 1),
    "set": lambda records: update_resources(records, 1, ResourceChange(priority=7), rules=_RULES, now=5.0),
    "label": lambda records: change_texts(records, 1, TextChange(add_labels=("x",))),
    "keep": lambda records: change_retention(records, 1, RetentionChange(save_trial_best=3)),
    "continue": lambda records: continue_experiment(
        records, 1, _BASE.config_json, "c1", user="ann", rules=_RULES, now=5.0
    ),
}
# The state after the action, or the refusal. "same" stays as it is.
_TABLE = {
    "QUEUED": "PAUSED same ended ended ended !not_ended same !not_ended same same same !not_ended",
    "STARTING": "PAUSED same canceling killing RUNNING !not_ended same !not_ended same same same !not_ended",
    "RUNNING": "PAUSED same canceling killing same !not_ended same !not_ended same same same !not_ended",
    "PAUSED": "same QUEUED ended ended ended !not_ended same !not_ended same same same !not_ended",
    "canceling": "!stopping !stopping same killing same !not_ended same !not_ended !stopping same same !not_ended",
    "killing": "!stopping !stopping same same same !not_ended same !not_ended !stopping same same !not_ended",
    "ended": "!ended !ended same same same archived same deleting !ended same same QUEUED",
    "archived": "!ended !ended same same same same ended deleting !ended same same !archived",
    "deleting": "!ended !ended same same same !deleting !deleting same !ended !deleting !deleting !deleting",
}
_CELLS = [
    (state, action, result)
    for state, results in _TABLE.items()
    for action, result in zip(_ACTIONS, results.split(), strict=True)
]


def _state(name: str) -> SchedulerState:
    """Returns an experiment in this state, with one trial that waits, holds slots, or has ended."""
    experiment = _EXPERIMENTS[name]
    trial = Trial("1.1", 1, 1, attempts=1)
    search = Search(1, 7, num_events=1, num_wanted=1, num_planned=1, is_shut_down=True)
    match experiment.state:
        case State.TERMINAL:
            return SchedulerState.of(
                [Counter(9), experiment, search, replace(trial, state=State.TERMINAL, outcome=Outcome.COMPLETED)]
            )
        case State.QUEUED | State.PAUSED:
            return SchedulerState.of([Counter(9), experiment, search, trial, Request("1.1", 1, "default", 1)])
    members = (Member("a1", 0, ("a1/0",)),)
    allocation = Allocation("1.1.1", "1.1", 1, 1, 1, "default", members, state=experiment.state)
    if experiment.state is State.STOPPING:
        allocation = replace(allocation, stop_kind=experiment.stop_kind, stop_reason="", deadline_at=9.0)
    return SchedulerState.of([Counter(9), experiment, search, replace(trial, state=experiment.state), allocation])


def _name(experiment: Experiment) -> str:
    """Returns the row of the table in which an experiment is."""
    if experiment.is_deleting:
        return "deleting"
    if experiment.state is State.STOPPING:
        return "killing" if experiment.stop_kind is ExitKind.KILLED else "canceling"
    if experiment.state is State.TERMINAL:
        return "archived" if experiment.archived else "ended"
    return experiment.state.value


@pytest.mark.parametrize(("state", "action", "result"), _CELLS)
def test_every_action_in_every_state(state: str, action: str, result: str) -> None:
    records = _state(state)
    if result.startswith("!"):
        with pytest.raises(GanglineError) as failure:
            _ACTIONS[action](records)
        assert failure.value.code == f"experiment.{result[1:]}"
        assert "\n" not in failure.value.message
        return
    change = _ACTIONS[action](records)
    records.apply(change, 2)
    assert _name(get(records, Experiment, 1)) == (state if result == "same" else result)
    assert not _ACTIONS[action](records), "repeated, it changes nothing more"


def test_the_table_has_every_state_and_action() -> None:
    assert set(_TABLE) == set(_EXPERIMENTS)
    assert {_EXPERIMENTS[name].state for name in _TABLE} == set(State)


@pytest.mark.parametrize("name", ["QUEUED", "RUNNING"])
def test_a_task_is_paused_only_while_it_waits(name: str) -> None:
    records = _state(name)
    records.apply(StateChange((replace(get(records, Experiment, 1), task_kind=TaskKind.COMMAND),)), 2)
    if name == "QUEUED":
        assert pause_experiment(records, 1, "paused by bob", _RULES, 5.0)
        return
    with pytest.raises(GanglineError, match="command 1 has no checkpoint to go on from, so it cannot be paused"):
        pause_experiment(records, 1, "paused by bob", _RULES, 5.0)
