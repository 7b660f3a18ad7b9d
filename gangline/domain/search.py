"""PURE: the state of an experiment's search, and the events that its searcher received. See types.proto."""

from __future__ import annotations

from dataclasses import dataclass

from gangline.domain.state import Outcome, SearchEventKind


@dataclass(frozen=True, slots=True)
class Search:
    experiment_id: int
    seed: int
    num_events: int = 0
    num_wanted: int = 0
    num_planned: int = 0
    is_shut_down: bool = False


@dataclass(frozen=True, slots=True)
class SearchEvent:
    kind: SearchEventKind
    trial_number: int = 0
    batches_completed: int = 0
    metric: float | None = None
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class SearchLog:
    """One page of the events, in their order. id distinguishes it from all other pages."""

    experiment_id: int
    page: int
    events: tuple[SearchEvent, ...] = ()

    @property
    def id(self) -> str:
        return search_log_id(self.experiment_id, self.page)


@dataclass(frozen=True, slots=True)
class SearchPreview:
    """The trials that a search would make. hyperparameters_json: of the first trials, in their order."""

    searcher: str
    seed: int
    num_trials: int
    max_concurrent_trials: int
    hyperparameters_json: tuple[str, ...] = ()


def search_log_id(experiment_id: int, page: int) -> str:
    """Returns the id of a page. page counts from 0."""
    return f"{experiment_id}/{page:06d}"
