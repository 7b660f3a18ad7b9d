"""PURE: a trial that trains past its length, `searcher.max_length` or `searcher.max_time`.

Trials are compared at equal length. So the validations up to the first one at or past the length choose the best, and
later ones do not. A trial that goes on gets a warning, once, and ends at twice its length. A script of `single` that
does not iterate `searcher.operations()` decides about its own length: it gets the warning and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gangline.domain.experiment import Trial
from gangline.domain.settled.record import Settled
from gangline.domain.settled.searcher import SettledSearcher
from gangline.domain.state import ExitKind, Outcome, State
from services.scheduler.state.records import Draft
from services.scheduler.state.rules import Rules
from services.scheduler.transition.search import close_trial
from services.scheduler.transition.stop import StopOrder

# Batches past the length that end no trial: a script may ask only now and then whether it is done.
SLACK_BATCHES = 100


@dataclass(frozen=True, slots=True)
class TrialReach:
    """How far a trial is."""

    batches: int
    units: float | None  # progress in the searcher's unit; None if it is not known
    # whether its script trains by an operation of the searcher, or by the library's trainer
    has_operation: bool = False


def bound_of(section: SettledSearcher) -> int | None:
    """Returns the length past which a trial ends: twice its own, and at least 100 batches more. None without a
    length."""
    if section.length is None:
        return None
    slack = SLACK_BATCHES if section.unit_name == "batches" else 0
    return max(2 * section.length, section.length + slack)


def is_comparable(trial: Trial, section: SettledSearcher, reach: TrialReach) -> bool:
    """Whether a validation counts when trials and checkpoints are compared."""
    length, bound = section.length, bound_of(section)
    if length is None or bound is None or reach.units is None or not _is_bound(section, reach):
        return True
    if trial.length_batches is not None:
        return reach.batches <= trial.length_batches
    return reach.units <= bound


def with_length(trial: Trial, section: SettledSearcher, reach: TrialReach) -> Trial:
    """Returns the trial with the first validation at or past its length on record."""
    if section.length is None or reach.units is None or reach.units < section.length or not _is_bound(section, reach):
        return trial
    first = reach.batches if trial.length_batches is None else min(reach.batches, trial.length_batches)
    return replace(trial, length_batches=first)


def warn(trial: Trial, section: SettledSearcher, reach: TrialReach) -> Trial:
    """Returns the trial with the warning that it trains past its length; the first one stays."""
    if trial.warning or reach.units is None:
        return trial
    what = f"it trains past its length: {reach.units:g} of {section.length} {section.unit_name}"
    if _is_bound(section, reach):
        then = f"validations from there on choose no best, and it ends past {bound_of(section)} {section.unit_name}"
    else:
        then = "its script decides about its own length, so leave out searcher.max_length"
    return replace(trial, warning=f"{what}; {then}")


def is_far_past(section: SettledSearcher, reach: TrialReach) -> bool:
    bound = bound_of(section)
    return bound is not None and reach.units is not None and reach.units > bound


def end_if_far_past(
    draft: Draft, trial: Trial, settled: Settled, reach: TrialReach, *, rules: Rules, now: float
) -> None:
    """Orders a trial beyond its bound to stop: first in order, and after the grace by force. The attempt's results up
    to the length count, so the trial is completed."""
    section = settled.searcher
    is_ending = trial.state is State.TERMINAL or trial.closing is not None
    if is_ending or not is_far_past(section, reach) or not _is_bound(section, reach):
        return
    reason = (
        f"it has trained {reach.units:g} {section.unit_name} of {section.length}; a trial ends past "
        f"{bound_of(section)}, so let the script stop at the length"
    )
    order = StopOrder(ExitKind.PREEMPTED, reason, now + settled.preemption_timeout + rules.force_seconds)
    close_trial(draft, trial, Outcome.COMPLETED, order, rules=rules, now=now)


def _is_bound(section: SettledSearcher, reach: TrialReach) -> bool:
    return section.name != "single" or reach.has_operation
