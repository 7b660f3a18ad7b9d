"""PURE: the events of a searcher, its answers, and the input that it is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from gangline.domain.search import SearchEvent
from gangline.domain.settled.searcher import SettledSearcher
from gangline.domain.state import SearchEventKind


@dataclass(frozen=True, slots=True)
class CreateTrial:
    """Asks for one more trial. It gets the next number, and `hyperparameters` of that number."""


@dataclass(frozen=True, slots=True)
class CloseTrial:
    """Ends a trial that has trained enough: it checkpoints and is COMPLETED. A trial that has ended stays as it is."""

    number: int
    reason: str = "its searcher has seen enough of it"  # a clause for the trial's users


@dataclass(frozen=True, slots=True)
class ShutDown:
    """Announces that no more operations follow: the experiment ends with the last of its trials."""


Operation = CreateTrial | CloseTrial | ShutDown


@dataclass(frozen=True)
class Brief:
    """Holds what a searcher may know of its experiment."""

    section: SettledSearcher  # section `searcher` of the configuration
    hyperparameters: Mapping[str, Any]  # section `hyperparameters` of the configuration
    seed: int


class Searcher(Protocol):
    """Decides which trials an experiment makes. listens: the events that it receives; others are not even logged.
    EXPERIMENT_CREATED comes first and once, TRIAL_CLOSED once for each trial, however it ended.

    VALIDATED comes once for each validation that has the searcher's metric, in the order of a trial's batches: each one
    is after more batches than those before it. It may follow a CloseTrial, until the trial has ended. A metric that is
    no finite number arrives as NaN."""

    listens: ClassVar[frozenset[SearchEventKind]]

    @property
    def num_planned(self) -> int:
        """Returns the number of trials in all, as far as it is known."""
        ...

    def on_event(self, event: SearchEvent) -> Sequence[Operation]: ...

    def hyperparameters(self, number: int) -> dict[str, Any] | None:
        """Returns the hyperparameters of a trial that the searcher asked for. The first one has number 1. May be called
        again. None: they are suggested outside of the searcher, see services.scheduler.searcher.study."""
        ...


class SearcherType(Protocol):
    """A class of searchers. Which events they receive is known without making one."""

    @property
    def listens(self) -> frozenset[SearchEventKind]: ...

    def __call__(self, brief: Brief) -> Searcher: ...


def most_replaced(num_planned: int) -> int:
    """Returns how many trials with invalid hyperparameters (InvalidHP) a search may replace, so that it ends even if
    all points are invalid."""
    return max(num_planned, 10)


class InTurn:
    """The base of searchers that create trials in turn, as many at a time as allowed; a closed trial makes room for the
    next. A trial that fails counts as one of them: the search continues with the next.

    num_replaceable: how many trials with invalid hyperparameters another trial replaces. These do not count.
    """

    listens: ClassVar[frozenset[SearchEventKind]] = frozenset(
        {SearchEventKind.EXPERIMENT_CREATED, SearchEventKind.TRIAL_CLOSED}
    )

    def __init__(self, num_trials: int, max_concurrent_trials: int, num_replaceable: int = 0) -> None:
        self._num_replaceable = num_replaceable
        self._num_trials = num_trials
        self._num_at_once = max_concurrent_trials or num_trials
        self._num_created = 0
        self._num_closed = 0

    @property
    def num_planned(self) -> int:
        return self._num_trials

    def on_event(self, event: SearchEvent) -> Sequence[Operation]:
        if event.kind is SearchEventKind.TRIAL_CLOSED:
            self._num_closed += 1
            if event.is_invalid_hp and self._num_replaceable:
                self._num_replaceable -= 1
                self._num_trials += 1
        if self._num_closed == self._num_trials:
            return [ShutDown()]
        wanted = min(self._num_trials, self._num_closed + self._num_at_once)
        # Closed trials make room, so as many are open as may be.
        operations = [CreateTrial()] * (wanted - self._num_created)
        self._num_created = wanted
        return operations
