"""Runs a search by rules of one's own: `searcher: {name: custom}`, and a process that decides.

    class HalfTheRate(custom_search.SearchMethod):
        def initial_operations(self):
            return [custom_search.Create({"rate": 0.1})]

        def on_trial_closed(self, trial, metric, outcome):
            ...

    experiment = client.create_experiment("exp.yaml", "code")
    custom_search.run(client, experiment.id, HalfTheRate())

The cluster records what the process asked for. When the process is started again, the method receives all events from
the beginning, and what was carried out before is not asked for again. So a method must be a function of its events:
draw random numbers from a generator with a seed of its own.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gangline.domain.search import SearchEvent, SearchOperation
from gangline.domain.state import Outcome, SearchEventKind, SearchOperationKind
from gangline.errors import GanglineError, conflict

if TYPE_CHECKING:
    from gangline.client import Client

# How long a call waits for the next event.
WAIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Create:
    """Creates a trial; the first one of a search has number 1."""

    hyperparameters: Mapping[str, Any]  # all that the trial reads


@dataclass(frozen=True, slots=True)
class Close:
    """Ends a trial that has trained enough: it checkpoints and is COMPLETED. One that has ended stays as it is."""

    trial: int


@dataclass(frozen=True, slots=True)
class ShutDown:
    """Ends the search: no more operations follow, and the experiment ends with the last of its trials."""


Operation = Create | Close | ShutDown


class SearchMethod(ABC):
    """Base class of searches. Each method returns the operations that follow from the event; trials have numbers."""

    @abstractmethod
    def initial_operations(self) -> Sequence[Operation]:
        """Called first and once."""

    def on_trial_created(self, trial: int) -> Sequence[Operation]:
        """Called once for each trial, in the order of their numbers."""
        return ()

    def on_validation_completed(self, trial: int, metric: float, units: float | None) -> Sequence[Operation]:
        """Called for each validation. metric: the searcher's, NaN where the trial reported no finite number. units: how
        far it has trained, in the unit of searcher.max_length; None where that is not known."""
        return ()

    def on_trial_closed(self, trial: int, metric: float | None, outcome: Outcome) -> Sequence[Operation]:
        """Called once when a trial has ended, however it ended. metric: its best validation; None for none."""
        return ()


def run(client: Client, experiment_id: int, method: SearchMethod) -> None:
    """Runs the search until it is over. May be called again after a crash, in another process as well.

    Raises GanglineError `search.not_the_same` if the method asks for something else than what is on record, because it
    is no function of its events, or because another process runs the same search.
    """
    num_known, num_posted = 0, 0
    posts: list[tuple[SearchOperation, ...]] = []
    wanted: list[tuple[SearchOperation, ...]] = []
    while True:
        events, is_over = client.get_search_events(experiment_id, num_known, WAIT_SECONDS)
        num_known += len(events)
        for event in events:
            if event.kind is SearchEventKind.OPERATED:
                posts.append(event.operations)
            elif operations := tuple(map(_to_record, _ask(method, event))):
                wanted.append(operations)
        _check_same(experiment_id, posts, wanted)
        if is_over and not events:
            return
        num_posted = max(num_posted, len(posts))
        while num_posted < len(wanted) and not is_over:
            is_over = not _post(client, experiment_id, num_posted, wanted[num_posted])
            num_posted += 1


def _post(client: Client, experiment_id: int, number: int, operations: Sequence[SearchOperation]) -> bool:
    """Returns whether the search took the operations; it may have been ended meanwhile."""
    try:
        client.post_search_operations(experiment_id, number, operations)
    except GanglineError as error:
        if error.code != "search.over":
            raise
        return False
    return True


def _ask(method: SearchMethod, event: SearchEvent) -> Sequence[Operation]:
    match event.kind:
        case SearchEventKind.EXPERIMENT_CREATED:
            return method.initial_operations()
        case SearchEventKind.TRIAL_CREATED:
            return method.on_trial_created(event.trial_number)
        case SearchEventKind.VALIDATED:
            metric = math.nan if event.metric is None else event.metric
            return method.on_validation_completed(event.trial_number, metric, event.units)
        case SearchEventKind.TRIAL_CLOSED:
            return method.on_trial_closed(event.trial_number, event.metric, event.outcome or Outcome.FAILED)
        case _:
            return ()


def _to_record(operation: Operation) -> SearchOperation:
    match operation:
        case Create(hyperparameters):
            point = json.dumps(dict(hyperparameters), sort_keys=True)
            return SearchOperation(SearchOperationKind.CREATE, hyperparameters_json=point)
        case Close(trial):
            return SearchOperation(SearchOperationKind.CLOSE, trial)
        case ShutDown():
            return SearchOperation(SearchOperationKind.SHUT_DOWN)


def _check_same(
    experiment_id: int, posts: Sequence[Sequence[SearchOperation]], wanted: Sequence[Sequence[SearchOperation]]
) -> None:
    """Compares what is on record with what the method asks for."""
    first = next((number for number, post in enumerate(posts) if list(wanted[number : number + 1]) != [post]), None)
    if first is not None:
        text = f"post {first} of the search of experiment {experiment_id} is not what this method asks for"
        advice = "a method must be a function of its events, and one process runs it at a time"
        raise conflict("search.not_the_same", f"{text}; {advice}")
