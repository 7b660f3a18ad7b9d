"""PURE: the suggestions of Optuna for one search, from the record of a `Sampled` searcher.

A study holds what Optuna knows when it suggests a trial: the hyperparameters of the earlier trials, and the part of the
results that had arrived when the searcher asked for the trial. Both are on record, so any leader suggests the same. A
study is built in the order of the trials' numbers and is never read by two threads at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gangline.config.hyperparameter import (
    Categorical,
    Const,
    Double,
    Int,
    Log,
    Range,
    is_nested,
    parse_range,
    ranges_of,
)
from gangline.domain.search import SearchEvent
from gangline.domain.state import SearchEventKind
from services.scheduler.searcher.draw import derive_seed
from services.scheduler.searcher.interface import Brief
from services.scheduler.searcher.optuna_class import STATELESS, make_pruner, make_sampler, name_of_sampler
from services.scheduler.searcher.sampled import Sampled, Told, tell_study

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """State of a search, as far as it is known."""

    hyperparameters: Sequence[Mapping[str, Any]]  # those of the trials that exist, from number 1 on
    told: Sequence[Told]  # see Sampled
    num_told_by_number: Sequence[int]  # see Sampled


class Study:
    """Suggests the trials of one search, one after the other."""

    def __init__(self, brief: Brief) -> None:
        import optuna  # noqa: PLC0415 - see optuna_class

        self._brief = brief
        self._axes = {
            "/".join(path): (path, value_range)
            for path, value_range in ranges_of(brief.hyperparameters)
            if not isinstance(value_range, Const)
        }
        self._distributions = {name: _distribution(value_range) for name, (_, value_range) in self._axes.items()}
        self._is_stateless = name_of_sampler(brief.section.sampler) in STATELESS
        self._no_sampler = optuna.samplers.RandomSampler(seed=0)
        self._study = optuna.create_study(
            study_name="search",
            sampler=self._no_sampler if self._is_stateless else make_sampler(brief.section.sampler, brief.seed),
            pruner=make_pruner(brief.section.pruner),
            direction="minimize" if brief.section.smaller_is_better else "maximize",
        )
        self._trials: list[optuna.Trial] = []
        self._num_told = 0

    def suggest(self, record: StudyRecord, count: int) -> dict[int, dict[str, Any]]:
        """Returns the hyperparameters of the next trials by number: of `count`, or of as many as the searcher asked
        for. record: has all that the records of earlier calls had."""
        num_known = len(record.hyperparameters)
        while len(self._trials) < num_known:
            self._add(record, record.hyperparameters[len(self._trials)])
        last = min(num_known + count, len(record.num_told_by_number))
        # Suggestions that were made before and are not on record yet come out of the trials.
        while len(self._trials) < last:
            self._add(record, None)
        return {number: self._point(self._trials[number - 1].params) for number in range(num_known + 1, last + 1)}

    def _add(self, record: StudyRecord, known: Mapping[str, Any] | None) -> None:
        """Adds the next trial. known: its hyperparameters; None lets the sampler choose them."""
        number = len(self._trials) + 1
        num_told = record.num_told_by_number[number - 1]
        for told in record.told[self._num_told : num_told]:
            tell_study(self._study, self._trials[told.number - 1], told)
        self._num_told = num_told
        if self._is_stateless and known is None:
            self._study.sampler = make_sampler(self._brief.section.sampler, derive_seed(self._brief.seed, number))
        elif self._is_stateless and known is not None:
            self._study.enqueue_trial(self._parameters(known))
        # A sampler with a memory is asked for every trial, so its memory becomes what it was.
        self._trials.append(self._study.ask(self._distributions))
        if self._is_stateless:
            self._study.sampler = self._no_sampler

    def _parameters(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the parameters of Optuna for these hyperparameters: the opposite of `_point`."""
        return {
            name: _parameter(value_range, _value_at(known, path)) for name, (path, value_range) in self._axes.items()
        }

    def _point(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Returns hyperparameters in the form of the configuration."""
        return _fill(self._brief.hyperparameters, parameters, ())


def first_suggestions(brief: Brief, count: int) -> list[dict[str, Any]]:
    """Returns the hyperparameters of the first trials: at most `count`, of those that wait for no result."""
    searcher = Sampled(brief)
    searcher.on_event(SearchEvent(SearchEventKind.EXPERIMENT_CREATED))
    record = StudyRecord((), searcher.told, searcher.num_told_by_number)
    return list(Study(brief).suggest(record, count).values())


def _distribution(value_range: Range) -> optuna.distributions.BaseDistribution:
    """Returns where a parameter lies. Invariant: a parameter is its hyperparameter exactly, not up to rounding, because
    the hyperparameters are what is on record."""
    import optuna  # noqa: PLC0415 - see optuna_class

    match value_range:
        case Int():
            return optuna.distributions.IntDistribution(value_range.minval, value_range.maxval)
        case Double():
            return optuna.distributions.FloatDistribution(value_range.minval, value_range.maxval)
        case Log():
            ends = sorted(value_range.base**exponent for exponent in (value_range.minval, value_range.maxval))
            # A tiny power may have become 0, which has no logarithm.
            low, high = (max(end, sys.float_info.min) for end in ends)
            return optuna.distributions.FloatDistribution(low, high, log=True)
        case Categorical():
            return optuna.distributions.CategoricalDistribution(list(dict.fromkeys(map(json.dumps, value_range.vals))))
        case Const():
            raise AssertionError("a constant is no parameter of Optuna")


def _parameter(value_range: Range, value: Any) -> Any:
    return json.dumps(value) if isinstance(value_range, Categorical) else value


def _value_of(value_range: Range, parameter: Any) -> Any:
    return json.loads(parameter) if isinstance(value_range, Categorical) else parameter


def _value_at(values: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = values
    for name in path:
        value = value[name]
    return value


def _fill(values: Mapping[str, Any], parameters: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    filled: dict[str, Any] = {}
    for name, value in values.items():
        place = (*path, name)
        if is_nested(value):
            filled[name] = _fill(value, parameters, place)
            continue
        value_range = parse_range(value)
        if isinstance(value_range, Const):
            filled[name] = value_range.val
        else:
            filled[name] = _value_of(value_range, parameters["/".join(place)])
    return filled
