"""PURE: whether a trial under `parallelism: auto` that failed tries another strategy.

The choice rests on predicted sizes, and on what planning sees of the trial's code. Where a prediction was too low, or a
strategy refuses what shows itself in training only, the first steps show it. The trial then steps down: its next
attempt chooses among the strategies that need less memory, or among those that have not refused it, and goes on from
the latest checkpoint. It does so once for lack of memory, and once for each strategy that refuses.
"""

from __future__ import annotations

from dataclasses import replace

from gangline.config.strategy_choice import MOST_BYTES, StrategyChoice, is_refusal, parse_choice, way_out
from gangline.domain.allocation import Allocation, ExitReport
from gangline.domain.experiment import Trial
from gangline.domain.state import ExitKind
from gangline.errors import GanglineError

# By then every part of a step has happened several times.
FIRST_STEPS = 10


def choice_of(trial: Trial) -> StrategyChoice | None:
    """Returns what auto has chosen for the trial; None where the configuration names a strategy, or where no attempt
    has come so far."""
    try:
        return parse_choice(trial.strategy_choice_json) if trial.strategy_choice_json else None
    except GanglineError:
        return None


def new_choice(trial: Trial, text: str) -> str:
    """Returns the record that an attempt has sent, with the refusals on record. text: as parse_choice has accepted it.
    Ranks of an older version know no refusals; the trial would meet the same ones for ever without this."""
    earlier, record = choice_of(trial), parse_choice(text)
    refused = {**(earlier.refused if earlier is not None else {}), **record.refused}
    if refused == record.refused:
        return text
    merged = replace(record, refused=refused)
    if len(merged.to_json().encode()) > MOST_BYTES:
        # The names of the strategies are what counts.
        merged = replace(record, refused=dict.fromkeys(refused, "refused the trial"))
    return merged.to_json()


def step_down(trial: Trial, allocation: Allocation, failure: ExitReport, started_batches: int) -> StrategyChoice | None:
    """Returns the record for the next attempt; None where the failure ends the trial. started_batches: those of the
    checkpoint from which this attempt started."""
    record = choice_of(trial)
    if record is None:
        return None
    known = [report.batches_completed for report in allocation.exits if report.batches_completed is not None]
    if max(known, default=trial.batches_completed) - started_batches >= FIRST_STEPS:
        return None
    if is_refused(failure):
        # An attempt on other slots has failed before its choice came.
        return (
            record.without_chosen(failure.message, failure.error_code) if record.slots == allocation.num_slots else None
        )
    if failure.kind is not ExitKind.OUT_OF_MEMORY or record.out_of_memory:
        return None
    needed = record.chosen.bytes.get("total", 0)
    smaller = [row for row in record.rows if not row.refusal and row.bytes.get("total", needed) < needed]
    return replace(record, out_of_memory=(record.choice,)) if smaller else None


def is_refused(failure: ExitReport) -> bool:
    """Returns whether the strategy has refused the trial's code."""
    return failure.kind is ExitKind.CONFIGURATION_ERROR and is_refusal(failure.error_code)


def describe_step(lower: StrategyChoice, failure: ExitReport) -> str:
    """Returns why the next attempt has another strategy, as a clause."""
    if is_refused(failure):
        return f"{lower.choice} refuses the trial, and auto goes on with another strategy"
    return f"{lower.choice} needs too much memory, and auto goes on with less"


def describe_final(trial: Trial, failure: ExitReport) -> tuple[str, str]:
    """Returns which choice of auto the failure would come again with, and what to name instead, as clauses; empty for a
    failure that does not depend on the choice."""
    is_blamed = failure.kind is ExitKind.OUT_OF_MEMORY or is_refused(failure)
    record = choice_of(trial) if is_blamed else None
    if record is None:
        return "", ""
    name = way_out(record, failure.error_code) if is_refused(failure) else ""
    return f" with {record.choice}, which auto has chosen,", f"; name {name} instead" if name else ""
