"""PURE: the base of searchers whose trials do not depend on one another.

The trials are created in turn, as many at a time as allowed, and a closed one makes room for the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gangline.domain.search import SearchEvent
from gangline.domain.state import SearchEventKind
from services.scheduler.searcher.interface import CreateTrial, Operation, ShutDown


class InTurn:
    """Creates trials in turn. A trial that fails counts as one of them: the search continues with the next."""

    listens: ClassVar[frozenset[SearchEventKind]] = frozenset(
        {SearchEventKind.EXPERIMENT_CREATED, SearchEventKind.TRIAL_CLOSED}
    )

    def __init__(self, num_trials: int, max_concurrent_trials: int) -> None:
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
        if self._num_closed == self._num_trials:
            return [ShutDown()]
        wanted = min(self._num_trials, self._num_closed + self._num_at_once)
        # Closed trials make room, so as many are open as may be.
        operations = [CreateTrial()] * (wanted - self._num_created)
        self._num_created = wanted
        return operations
