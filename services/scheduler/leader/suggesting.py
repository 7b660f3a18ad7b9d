"""Lets Optuna suggest the next trials of searches, outside of transitions, because a suggestion may take seconds.

A suggestion depends only on what is on record, so a lost one is made again. The continuation asks for suggestions and
passes them to the transition that creates the trials.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from gangline.domain.experiment import Experiment, Trial
from gangline.domain.id import trial_id
from gangline.domain.search import Search
from gangline.domain.state import State
from services.scheduler.searcher.interface import Brief
from services.scheduler.searcher.optuna_class import name_of_sampler
from services.scheduler.searcher.replay import keep_searcher, take_searcher
from services.scheduler.searcher.sampled import Sampled
from services.scheduler.searcher.study import Study, StudyRecord
from services.scheduler.state.records import SchedulerState
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.search import Suggestions

_log = structlog.get_logger(__name__)

# Suggestions that are made in one go. More would let the first trials wait for the last.
_MOST_AT_ONCE = 8
# Studies kept at a time. Another one is built from the records when its search needs it.
_MAX_KEPT = 64
# Threads for suggestions share the interpreter with the event loop, so there are few.
_MAX_RUNNING = 2


class Suggesting:
    """Makes suggestions for the searches of one term. spawn: runs a coroutine until the term ends. on_made: gets the
    experiment whose suggestions are there, or have failed."""

    def __init__(
        self,
        state: Callable[[], SchedulerState],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        on_made: Callable[[int], None],
    ) -> None:
        self._state = state
        self._spawn = spawn
        self._on_made = on_made
        self._studies: OrderedDict[int, Study] = OrderedDict()
        self._made: dict[int, dict[int, dict[str, Any]]] = {}
        self._failures: dict[int, str] = {}
        self._running: set[int] = set()
        self._turns = asyncio.Semaphore(_MAX_RUNNING)

    def ready(self, experiment_id: int) -> Suggestions:
        """Returns the suggestions that are there, by trial number. If the search needs others, they are begun."""
        records = self._state()
        search = records.find(Search, experiment_id)
        if search is None or records.num_trials_of(experiment_id) >= search.num_wanted:
            self._made.pop(experiment_id, None)
            return {}
        following = records.num_trials_of(experiment_id) + 1
        made = self._made.get(experiment_id, {})
        if following in made:
            return made
        if experiment_id not in self._running and experiment_id not in self._failures:
            self._begin(records, search)
        return {}

    def failure(self, experiment_id: int) -> str:
        """Returns why no suggestion can be made for this search; empty when none has failed."""
        return self._failures.get(experiment_id, "")

    def _begin(self, records: SchedulerState, search: Search) -> None:
        experiment = records.find(Experiment, search.experiment_id)
        if experiment is None or experiment.state in (State.STOPPING, State.TERMINAL):
            return
        settled = settled_of(experiment.config_json)
        searcher = take_searcher(records, search, settled)
        keep_searcher(records, search, searcher)
        if not isinstance(searcher, Sampled):
            return
        trials = [
            records.find(Trial, trial_id(experiment.id, number))
            for number in range(1, records.num_trials_of(experiment.id) + 1)
        ]
        texts = [trial.hyperparameters_json for trial in trials if trial is not None]
        brief = Brief(settled.searcher, settled.hyperparameters, search.seed)
        told, num_told = tuple(searcher.told), tuple(searcher.num_told_by_number)
        self._running.add(experiment.id)
        self._spawn(self._make(experiment.id, brief, texts, lambda known: StudyRecord(known, told, num_told)))

    async def _make(
        self,
        experiment_id: int,
        brief: Brief,
        texts: list[str],
        make_record: Callable[[list[dict[str, Any]]], StudyRecord],
    ) -> None:
        kept = self._studies.pop(experiment_id, None)
        try:
            async with self._turns:
                study, made = await asyncio.to_thread(_suggest, kept, brief, texts, make_record)
        except Exception as error:  # noqa: BLE001 - Optuna's samplers are code of others; the search must end, not wait
            _log.exception("no suggestion", experiment_id=experiment_id)
            name = name_of_sampler(brief.section.sampler)
            self._failures[experiment_id] = (
                f"searcher.sampler: {name} cannot suggest trial {len(texts) + 1} ({type(error).__name__}); check its "
                "arguments, and see the scheduler's log"
            )
        else:
            self._made[experiment_id] = made
            self._studies[experiment_id] = study
            if len(self._studies) > _MAX_KEPT:
                self._studies.popitem(last=False)
        finally:
            self._running.discard(experiment_id)
        self._on_made(experiment_id)


def _suggest(
    study: Study | None, brief: Brief, texts: list[str], make_record: Callable[[list[dict[str, Any]]], StudyRecord]
) -> tuple[Study, dict[int, dict[str, Any]]]:
    study = study or Study(brief)
    return study, study.suggest(make_record([json.loads(text) for text in texts]), _MOST_AT_ONCE)
