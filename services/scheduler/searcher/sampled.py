"""PURE: the searchers `tpe` and `optuna`: Optuna suggests each trial from the results of those before it.

A suggestion may take seconds, so no transition makes one. The searcher only records what Optuna is to be told, and
after how much of it each trial was asked for. services.scheduler.searcher.study makes the suggestion from that record,
and the leader hands it to the transition that creates the trial. So the next suggestion is the same for every leader.

A pruner decides at each validation, here, because it compares a few numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from gangline.domain.search import SearchEvent
from gangline.domain.state import Outcome, SearchEventKind
from services.scheduler.searcher.interface import Brief, CloseTrial, CreateTrial, InTurn, Operation, most_replaced
from services.scheduler.searcher.optuna_class import make_pruner, make_sampler

if TYPE_CHECKING:
    import optuna


class OptunaResult(StrEnum):
    """What Optuna is told of a trial: a value on the way, or how it ended."""

    VALIDATED = "VALIDATED"
    COMPLETED = "COMPLETED"
    PRUNED = "PRUNED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Told:
    """One thing to tell Optuna."""

    number: int  # number of the trial
    result: OptunaResult
    value: float | None = None
    step: int = 0  # step of an intermediate value, in the searcher's unit


class Sampled(InTurn):
    """Creates trials in turn, each with hyperparameters that Optuna suggests. told: in the order of the events.
    num_told_by_number: how much of it Optuna knows when it suggests a trial, by the trial's number from 1 on."""

    listens: ClassVar[frozenset[SearchEventKind]] = frozenset(
        {SearchEventKind.EXPERIMENT_CREATED, SearchEventKind.VALIDATED, SearchEventKind.TRIAL_CLOSED}
    )

    def __init__(self, brief: Brief) -> None:
        num_trials = brief.section.max_trials or 1
        super().__init__(num_trials, brief.section.max_concurrent_trials, most_replaced(num_trials))
        self._section = brief.section
        # Refuses what Optuna does not have.
        make_sampler(brief.section.sampler, brief.seed)
        pruner = make_pruner(brief.section.pruner)
        self._pruning = None if pruner is None else _Pruning(pruner, brief.section.smaller_is_better)
        self._pruned: set[int] = set()
        self.told: list[Told] = []
        self.num_told_by_number: list[int] = []

    def on_event(self, event: SearchEvent) -> Sequence[Operation]:
        if event.kind is SearchEventKind.VALIDATED:
            return self._on_validated(event)
        if event.kind is SearchEventKind.TRIAL_CLOSED:
            self._tell(self._ending(event))
        operations = super().on_event(event)
        num_new = sum(isinstance(operation, CreateTrial) for operation in operations)
        self.num_told_by_number += [len(self.told)] * num_new
        if self._pruning is not None:
            self._pruning.add(num_new)
        return operations

    def hyperparameters(self, _number: int) -> dict[str, Any] | None:
        return None

    def _on_validated(self, event: SearchEvent) -> Sequence[Operation]:
        number = event.trial_number
        if event.metric is None or not math.isfinite(event.metric) or number in self._pruned:
            return []
        step = event.batches_completed if event.units is None else int(event.units)
        self._tell(Told(number, OptunaResult.VALIDATED, event.metric, step))
        if self._pruning is None or not self._pruning.is_hopeless(number):
            return []
        self._pruned.add(number)
        section = self._section
        reason = (
            f"its searcher stopped it after {step} {section.unit_name}: {section.pruner and section.pruner['name']} "
            f"judged {section.metric} {event.metric:.6g} against the other trials"
        )
        return [CloseTrial(number, reason)]

    def _ending(self, event: SearchEvent) -> Told:
        if event.trial_number in self._pruned:
            return Told(event.trial_number, OptunaResult.PRUNED)
        has_value = event.metric is not None and math.isfinite(event.metric)
        if event.outcome is Outcome.COMPLETED and has_value:
            return Told(event.trial_number, OptunaResult.COMPLETED, event.metric)
        return Told(event.trial_number, OptunaResult.FAILED)

    def _tell(self, told: Told) -> None:
        self.told.append(told)
        if self._pruning is not None:
            self._pruning.tell(told)


class _Pruning:
    """Judges validations with a pruner. Its trials have no hyperparameters, which no pruner reads."""

    def __init__(self, pruner: optuna.pruners.BasePruner, smaller_is_better: bool) -> None:
        import optuna  # noqa: PLC0415 - see optuna_class

        # Some pruners divide trials by a hash of the name, which must be the same for every leader.
        self._study = optuna.create_study(
            study_name="search",
            pruner=pruner,
            sampler=optuna.samplers.RandomSampler(seed=0),
            direction="minimize" if smaller_is_better else "maximize",
        )
        self._trials: list[optuna.Trial] = []

    def add(self, num_trials: int) -> None:
        self._trials += [self._study.ask() for _ in range(num_trials)]

    def tell(self, told: Told) -> None:
        tell_study(self._study, self._trials[told.number - 1], told)

    def is_hopeless(self, number: int) -> bool:
        return self._trials[number - 1].should_prune()


def tell_study(study: optuna.Study, trial: optuna.Trial, told: Told) -> None:
    """Tells Optuna one thing of a trial."""
    import optuna  # noqa: PLC0415 - see optuna_class

    match told.result:
        case OptunaResult.VALIDATED:
            assert told.value is not None
            trial.report(told.value, told.step)
        case OptunaResult.COMPLETED:
            study.tell(trial, told.value)
        case OptunaResult.PRUNED:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        case OptunaResult.FAILED:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
