"""PURE: whether a trial under `parallelism: auto` that ran out of memory tries another strategy.

The choice rests on predicted sizes. Where the prediction was too low, the first steps show it. The trial then steps
down once: its next attempt chooses among the strategies that need less, and goes on from the latest checkpoint.
"""

from __future__ import annotations

from dataclasses import replace

from gangline.config.strategy_choice import StrategyChoice, parse_choice
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


def step_down(trial: Trial, allocation: Allocation, failure: ExitReport, started_batches: int) -> StrategyChoice | None:
    """Returns the record for the next attempt; None where the failure ends the trial. started_batches: those of the
    checkpoint from which this attempt started."""
    record = choice_of(trial)
    if failure.kind is not ExitKind.OUT_OF_MEMORY or record is None or record.out_of_memory:
        return None
    known = [report.batches_completed for report in allocation.exits if report.batches_completed is not None]
    if max(known, default=trial.batches_completed) - started_batches >= FIRST_STEPS:
        return None
    needed = record.chosen.bytes.get("total", 0)
    smaller = [row for row in record.rows if not row.refusal and row.bytes.get("total", needed) < needed]
    return replace(record, out_of_memory=(record.choice,)) if smaller else None
