"""PURE: what a searcher is told, what it answers, and what it is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from gangline.domain.search import SearchEvent
from gangline.domain.state import SearchEventKind


@dataclass(frozen=True, slots=True)
class CreateTrial:
    """One more trial. It gets the next number, and `hyperparameters` of that number."""


@dataclass(frozen=True, slots=True)
class CloseTrial:
    """The trial has trained enough: it checkpoints, and has COMPLETED."""

    number: int


@dataclass(frozen=True, slots=True)
class ShutDown:
    """Nothing more will be asked for: the experiment ends with the last of its trials."""


Operation = CreateTrial | CloseTrial | ShutDown


@dataclass(frozen=True)
class Brief:
    """What of an experiment its searcher may know.

    max_trials: None where the searcher knows by itself. max_concurrent_trials: 0 for no limit. hyperparameters: the
    section of the configuration.
    """

    hyperparameters: Mapping[str, Any]
    seed: int
    max_trials: int | None = None
    max_concurrent_trials: int = 0
    smaller_is_better: bool = True


class Searcher(Protocol):
    """listens: the events that it is told; others are not even logged. EXPERIMENT_CREATED comes first and once,
    TRIAL_CLOSED once for each trial, in whichever way it ended."""

    listens: ClassVar[frozenset[SearchEventKind]]

    @property
    def num_planned(self) -> int:
        """Trials in all, as far as it can tell."""
        ...

    def on_event(self, event: SearchEvent) -> Sequence[Operation]: ...

    def hyperparameters(self, number: int) -> dict[str, Any]:
        """Of a trial that it asked for. The first one has number 1. May be asked again."""
        ...
