"""Continues work that does not fit into one transaction: the trials of a large search, the end or the pause of many
trials, work that has to leave an agent, checkpoints that are no longer needed, the records of deleted experiments.

The records state the goal; this module only calls `continue_change`, `clear`, `retire` and `review_checkpoints` again
until they change nothing. It does so for the experiments, agents and trials that a commit has touched and, when a term
begins, for all that may be behind. The term starts and ends it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from gangline.domain.allocation import Request
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.resource import Agent
from gangline.domain.search import Search
from gangline.domain.state import State
from gangline.errors import GanglineError
from services.scheduler.leader.suggesting import Suggesting
from services.scheduler.searcher.draw import is_drawn, warm_up
from services.scheduler.state.records import Id, Records, StateChange
from services.scheduler.state.records import SchedulerState as Known
from services.scheduler.state.retention import retention_of
from services.scheduler.state.rules import Rules
from services.scheduler.state.settled import settled_of
from services.scheduler.state.state_store import Store
from services.scheduler.transition.availability import clear
from services.scheduler.transition.checkpoint import retire
from services.scheduler.transition.end import continue_change
from services.scheduler.transition.retention_change import review_checkpoints

_log = structlog.get_logger(__name__)

# With Checkpoint the id is that of an experiment, all of whose checkpoints are reviewed.
_Touched = tuple[type, Id]


class Continuation:
    """spawn: runs a coroutine until the term ends."""

    def __init__(self, store: Store, rules: Rules, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._store = store
        self._rules = rules
        self._suggesting = Suggesting(lambda: store.state, spawn, self._on_suggested)
        # A dict used as an ordered set: records are taken in the order in which they were touched.
        self._touched: dict[_Touched, None] = {
            (Experiment, experiment.id): None for experiment in _going_on(store.state)
        }
        self._touched |= {(Agent, agent.id): None for agent in store.state.all_of(Agent)}
        self._touched |= {(Trial, trial_id): None for trial_id in _with_checkpoints(store.state)}
        reviewed = (record for record in store.state.all_of(Experiment) if record.reviews_checkpoints)
        self._touched |= {(Checkpoint, record.id): None for record in reviewed}
        self._wake = asyncio.Event()
        self._wake.set()

    def on_committed(self, change: StateChange) -> None:
        experiment_ids = {record.id: None for record in change.all_of(Experiment)}
        experiment_ids |= {record.experiment_id: None for record in change.all_of(Search)}
        whole_submit_ids = whole_submits(change) if experiment_ids else frozenset()
        touched: list[_Touched] = [
            (Checkpoint, record.id) for record in change.all_of(Experiment) if record.reviews_checkpoints
        ]
        touched += [
            (Experiment, experiment_id) for experiment_id in experiment_ids if experiment_id not in whole_submit_ids
        ]
        touched += [(Agent, record.id) for record in change.all_of(Agent)]
        # An ended trial resumes from no checkpoint any more, so its checkpoints may have become superfluous.
        ended = (record for record in change.all_of(Trial) if record.state is State.TERMINAL)
        touched += [(Trial, record.id) for record in ended if record.latest_checkpoint_id]
        touched += [(Trial, record.trial_id) for record in change.all_of(Checkpoint)]
        if touched:
            self._touched |= dict.fromkeys(touched)
            self._wake.set()

    async def run(self) -> None:
        """Runs until it is cancelled or the term is over."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._touched:
                touched = next(iter(self._touched))
                del self._touched[touched]
                await self._continue_change(touched)

    async def _continue_change(self, touched: _Touched) -> None:
        """Takes one step. A step that changed something is queued again, so that other records have their turn in
        between.
        """
        record_type, record_id = touched
        try:
            change = await self._store.commit(self._continuing(record_type, record_id))
        except GanglineError:
            raise
        except Exception:  # noqa: BLE001 - a bug in one search must not end all of them
            _log.exception("cannot be brought in line", kind=record_type.__name__.lower(), id=record_id)
            return
        if change:
            self._touched[touched] = None

    def _continuing(self, record_type: type, record_id: Any) -> Callable[[Records], StateChange]:
        rules = self._rules
        if record_type is Experiment:
            suggestions, failure = self._suggesting.ready(record_id), self._suggesting.failure(record_id)
            return lambda records: continue_change(
                records, record_id, rules, time.time(), suggestions=suggestions, failure=failure
            )
        if record_type is Agent:
            return lambda records: clear(records, record_id, rules, time.time())
        if record_type is Checkpoint:
            return lambda records: review_checkpoints(records, record_id)
        return lambda records: retire(records, record_id)

    def _on_suggested(self, experiment_id: int) -> None:
        self._touched[(Experiment, experiment_id)] = None
        self._wake.set()


def whole_submits(change: StateChange) -> frozenset[int]:
    """Returns the experiments of which this change puts all trials that their searches want, each waiting with its
    request. They need no further step.
    """
    num_wanted: dict[int, int] = {}
    num_trials, num_requests = defaultdict[int, int](int), defaultdict[int, int](int)
    experiments: list[Experiment] = []
    for record in change.puts:
        match record:
            case Search():
                num_wanted[record.experiment_id] = record.num_wanted
            case Trial():
                num_trials[record.experiment_id] += 1
            case Request():
                num_requests[record.experiment_id] += 1
            case Experiment() if record.state is State.QUEUED and not record.gives_back:
                experiments.append(record)
    return frozenset(
        experiment.id
        for experiment in experiments
        if num_wanted.get(experiment.id) == num_trials[experiment.id] == num_requests[experiment.id]
    )


async def warm_up_if_drawn(config_json: str) -> None:
    """Loads the library that draws hyperparameters, before a transition needs it. Loading takes a second, for which the
    event loop of a leader must not block.
    """
    settled = settled_of(config_json)
    if is_drawn(settled.hyperparameters) or settled.searcher.name in ("tpe", "optuna"):
        await asyncio.to_thread(warm_up)


async def warm_up_for(state: Known) -> None:
    """Loads the library, where it is needed, before the first transitions of a term."""
    for experiment in _going_on(state):
        await warm_up_if_drawn(experiment.config_json)


def _going_on(state: Known) -> list[Experiment]:
    return [
        experiment
        for experiment in state.all_of(Experiment)
        if experiment.state is not State.TERMINAL or experiment.is_deleting
    ]


def _with_checkpoints(state: Known) -> list[str]:
    """Returns trials that have checkpoints; only one of each experiment whose trials are compared, because one step
    reads all of them.
    """
    trials: dict[Id, str] = {}
    for checkpoint in state.all_of(Checkpoint):
        experiment = state.find(Experiment, checkpoint.experiment_id)
        is_compared = experiment is not None and retention_of(settled_of(experiment.config_json)).experiment_best > 0
        trials.setdefault(checkpoint.experiment_id if is_compared else checkpoint.trial_id, checkpoint.trial_id)
    return list(trials.values())
