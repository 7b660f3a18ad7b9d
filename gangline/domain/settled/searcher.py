"""PURE: the section `searcher` of a settled configuration: the length of a trial, and the brackets of a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from gangline.domain.search import SearchBracket


Unit = Literal["batches", "records", "epochs"]
UNITS: tuple[Unit, ...] = ("batches", "records", "epochs")
# Their trials are stopped by their validations.
HALVING_NAMES = ("async_halving", "adaptive_asha")
# A larger search is usually a mistake.
MAX_TRIALS = 10_000
# More rungs than any length can be divided into.
MAX_RUNGS = 64
MAX_DIVISOR = 1000


class SettledLength(NamedTuple):
    """A length or a period."""

    unit: str  # batches, records or epochs
    units: int


class SettledSearcher(NamedTuple):
    """The searcher with its keys. gangline.config.searcher lists which of them each searcher has."""

    name: str = ""
    metric: str = ""  # validation metric that decides which trial and which checkpoint is best
    smaller_is_better: bool = True
    max_length: SettledLength | None = None  # None where max_time gives the length, or a script decides by itself
    time_metric: str | None = None  # what max_time counts: a validation metric, or batches, records or epochs
    max_time: int | None = None
    max_trials: int | None = None  # None for searchers that decide about their number by themselves
    max_concurrent_trials: int = 16  # the most trials that have not ended at a time; 0 for no limit
    source_trial_id: str | None = None  # trial from whose latest checkpoint all trials begin
    source_checkpoint_uuid: str | None = None  # checkpoint from which all trials begin
    mode: Literal["aggressive", "standard", "conservative"] = "standard"  # which numbers of rungs have a bracket
    divisor: float = 4.0  # share of a rung's trials that train on is 1 / divisor
    max_rungs: int = 5
    num_rungs: int | None = None  # of the one bracket of async_halving
    bracket_rungs: tuple[int, ...] = ()  # numbers of rungs of the brackets; empty lets the mode choose
    unit: str | None = None  # unit in which a custom search counts; None for batches
    sampler: Mapping[str, Any] | None = None  # class of Optuna by `name`, with its arguments
    pruner: Mapping[str, Any] | None = None  # class of Optuna by `name`, with its arguments

    @property
    def unit_name(self) -> str:
        """Returns the name of the unit in which the searcher measures trials: time_metric, or the unit of max_length.
        Without both it is batches."""
        if self.time_metric is not None:
            return self.time_metric
        return self.max_length.unit if self.max_length is not None else "batches"

    @property
    def length(self) -> int | None:
        """Returns the whole length of a trial in the unit of `unit_name`; None where a script decides."""
        if self.max_time is not None:
            return self.max_time
        return self.max_length.units if self.max_length is not None else None

    @property
    def operation_length(self) -> SettledLength | None:
        """Returns the length to which a script trains: max_length, or else max_time in the unit time_metric, which may
        be a validation metric; None where the script decides."""
        if self.max_length is not None:
            return self.max_length
        return SettledLength(self.time_metric, self.max_time) if self.time_metric and self.max_time else None

    @property
    def is_halving(self) -> bool:
        return self.name in HALVING_NAMES

    @property
    def brackets(self) -> tuple[SearchBracket, ...]:
        """Returns the brackets of a search by successive halving; none for other searchers, and none for values that
        no submit takes, which a script off the cluster may pass."""
        length, max_trials = self.length, self.max_trials
        if not self.is_halving or length is None or max_trials is None or not self._is_divisible(length, max_trials):
            return ()
        # Few programs need it, and it takes as long to load as all records of a configuration.
        from gangline.domain.search import (  # noqa: PLC0415
            count_rungs,
            divide_search,
            make_bracket,
            rung_lengths,
        )

        if self.name == "async_halving":
            rungs = rung_lengths(length, self.divisor, self.num_rungs or 1)
            return (make_bracket(rungs, self.divisor, max_trials, self.max_concurrent_trials),)
        numbers = self.bracket_rungs or count_rungs(self.mode, self.max_rungs, self.divisor, length, max_trials)
        return divide_search(numbers, length, self.divisor, max_trials, self.max_concurrent_trials)

    def _is_divisible(self, length: int, max_trials: int) -> bool:
        """Returns whether all numbers of a search by successive halving are within the limits of a submit."""
        numbers = (self.max_rungs, 1 if self.num_rungs is None else self.num_rungs, *self.bracket_rungs)
        return (
            1 <= length < 2**63
            and 1 <= max_trials <= MAX_TRIALS
            and 1 < self.divisor <= MAX_DIVISOR
            and all(1 <= number <= MAX_RUNGS for number in numbers)
        )

    @property
    def rungs(self) -> tuple[int, ...]:
        """Returns the lengths at which a search by successive halving decides. They are those of all brackets, because
        a trial does not know its own."""
        return tuple(sorted({rung.length for bracket in self.brackets for rung in bracket.rungs}))
