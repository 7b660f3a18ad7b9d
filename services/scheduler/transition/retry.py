"""PURE: the next state of a trial when its allocation has ended.

Owns the classification of exits and the rules of retries; no other module decides what is retried. A failure inside the
trial uses up one of its restarts; a failure of the machines around it does not: the trial waits, and is given up only
after hours without progress. A command that has not begun anywhere may begin elsewhere. A failure that
would recur is not retried: memory, imports, configuration, invalid hyperparameters, a loss that is no number, the same
error at the same batch as before, or a match of a log policy. A damaged checkpoint costs no restart as long as the
trial has an older one to continue from. A start that lacked a gateway is no failure, unless one was registered
meanwhile: then the machine may be cut off from it. Under `parallelism: auto` lack of
memory in the first steps is answered once by a strategy that needs less, and the refusal of a strategy by another one.
The back-off before the next attempt grows with the failures in a row; an attempt that made progress before it failed
begins a new row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gangline.config.strategy_choice import StrategyChoice
from gangline.domain.allocation import Allocation, ExitReport
from gangline.domain.experiment import Checkpoint, Trial
from gangline.domain.state import CheckpointState, ExitKind, LogAction, Outcome, TaskKind
from services.scheduler.state.rules import Rules
from services.scheduler.transition.checkpoint import age_of
from services.scheduler.transition.strategy_step import describe_final, describe_step, step_down

# Kinds of exits that are no failure of the member itself.
_NO_FAILURE = {ExitKind.COMPLETED, ExitKind.PREEMPTED, ExitKind.KILLED, ExitKind.PEER_FAILED}
# Kinds of failures that would recur, with the wording for the reason.
_FINAL = {
    ExitKind.OUT_OF_MEMORY: "out of memory",
    ExitKind.IMPORT_ERROR: "an import that fails",
    ExitKind.CONFIGURATION_ERROR: "a configuration that cannot work",
    ExitKind.NONFINITE_METRIC: "a metric that is no finite number",
}
# The pause before the next start after one that lacked a gateway. The planner holds the trial while none is registered;
# this pause is for one that has just registered.
GATEWAY_PAUSE_SECONDS = 5.0
# Attempts that fail for reasons outside of the trial before it is given up, however long they took: a trial that waited
# for slots between its failures has not been tried often enough.
LEAST_ATTEMPTS = 5
# Kinds of failures outside of the trial; they use up no restart.
INFRASTRUCTURE = {
    ExitKind.RUNNER_LOST,
    ExitKind.AGENT_LOST,
    ExitKind.RENDEZVOUS,
    ExitKind.NETWORK,
    ExitKind.START_FAILED,
    ExitKind.AGENT_DISK,
    ExitKind.PEER_FAILED,
    ExitKind.NO_GATEWAY,
}


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """Holds the decision."""

    outcome: Outcome | None  # None if the trial is requeued, not before delay_seconds have passed
    reason: str
    restarts: int
    # attempts without progress, this one included, that failed for reasons outside of the trial
    infrastructure_failures: int
    failures_in_a_row: int = 0  # attempts without progress, this one included, that failed for any reason
    delay_seconds: float = 0.0
    failure: ExitReport | None = None  # failure that ended this attempt; None if there was none
    checkpoint: Checkpoint | None = None  # the one from which the trial continues; None for its latest
    # new record of what `parallelism: auto` has chosen; None leaves the trial's record
    strategy: StrategyChoice | None = None
    failing_since_at: float = 0.0  # time at which the first of the infrastructure_failures ended; 0 without one


@dataclass(frozen=True, slots=True)
class RetryTerms:
    """Holds what a decision depends on beside the trial and its allocation."""

    rules: Rules
    now: float
    max_restarts: int
    closing: Outcome | None = None  # the outcome that a user or the searcher wants for this trial
    # the checkpoint to continue from if the one that the allocation started from is damaged
    older: Checkpoint | None = None
    task_kind: TaskKind | None = None
    had_gateway: bool = False  # whether a gateway was registered for as long as the allocation lived


def decide(trial: Trial, allocation: Allocation, terms: RetryTerms) -> RetryDecision:
    """Decides about the trial. A task that has begun is not started again, because a command that runs twice may do
    harm. Every member of the allocation has ended."""
    if has_progressed(trial, allocation):
        trial = replace(trial, infrastructure_failures=0, failures_in_a_row=0, failing_since_at=0.0)
    decision = _decide(trial, allocation, terms)
    if decision.infrastructure_failures:
        decision = replace(decision, failing_since_at=trial.failing_since_at or terms.now)
    may_begin_again = has_not_begun(allocation) or lacked_gateway(allocation)
    if terms.task_kind is None or decision.outcome is not None or may_begin_again:
        return decision
    reason = f"{decision.reason}; a {terms.task_kind.lower()} is not started again"
    return replace(decision, outcome=Outcome.FAILED, reason=reason, delay_seconds=0.0)


def _decide(trial: Trial, allocation: Allocation, terms: RetryTerms) -> RetryDecision:
    closing = terms.closing
    kinds = {report.kind for report in allocation.exits}
    restarts, setbacks = trial.restarts, trial.infrastructure_failures
    failure = first_failure(allocation)
    # A closing trial has the reason of its closing. Its allocation may have been stopped before, for another reason.
    is_closed_so = closing is not None and closing is trial.closing
    if failure is None and kinds == {ExitKind.COMPLETED}:
        reason = trial.reason if is_closed_so and closing is Outcome.COMPLETED else ""
        return RetryDecision(Outcome.COMPLETED, reason, restarts, 0)
    if closing is not None:
        reason = trial.reason if is_closed_so else allocation.stop_reason
        return RetryDecision(closing, reason or allocation.stop_reason, restarts, setbacks, failure=failure)
    if failure is None or _is_late_checkpoint(allocation, failure):
        return _after_stop(allocation, trial)
    if failure.kind is ExitKind.INVALID_HP:
        reason = f"{describe(failure)}; not tried again, because its hyperparameters are invalid (InvalidHP)"
        return RetryDecision(Outcome.FAILED, reason, restarts, setbacks, failure=failure)
    hopeless = _why_hopeless(trial, allocation, failure, terms.older)
    if hopeless:
        reason = f"{describe(failure)}; not tried again, because {hopeless}"
        return RetryDecision(Outcome.FAILED, reason, restarts, setbacks, failure=failure)
    return _after_failure(failure, trial, terms)


def step_down_if_it_helps(
    decision: RetryDecision, trial: Trial, allocation: Allocation, started_batches: int
) -> RetryDecision:
    """Returns the decision, or that the trial goes on with another strategy where auto's choice has run out of memory
    or refused the trial in its first steps. It uses up no restart. started_batches: those of the checkpoint from which
    the allocation started."""
    if decision.outcome is not Outcome.FAILED or decision.failure is None:
        return decision
    lower = step_down(trial, allocation, decision.failure, started_batches)
    if lower is None:
        return decision
    reason = f"{describe(decision.failure)}; {describe_step(lower, decision.failure)}"
    return replace(decision, outcome=None, reason=reason, strategy=lower)


def first_failure(allocation: Allocation) -> ExitReport | None:
    """Returns the earliest real failure: the scheduler's own finding, else one that members report. A member that only
    ended because another one failed counts when no member reports a failure of its own."""
    if allocation.failure is not None:
        return allocation.failure
    real = [report for report in allocation.exits if report.kind not in _NO_FAILURE]
    hearsay = [report for report in allocation.exits if report.kind is ExitKind.PEER_FAILED]
    return min(real or hearsay, key=lambda report: (report.failed_at or report.ended_at, report.agent_id), default=None)


def lacked_gateway(allocation: Allocation) -> bool:
    """Returns whether the start ended because no gateway answered. Nothing of the trial has run on that machine, so a
    command may start again too."""
    failure = first_failure(allocation)
    return failure is not None and failure.kind is ExitKind.NO_GATEWAY


def has_not_begun(allocation: Allocation) -> bool:
    """Returns whether no member has started a process of the user's, for certain."""
    return bool(allocation.exits) and all(report.has_not_begun for report in allocation.exits)


def has_progressed(trial: Trial, allocation: Allocation) -> bool:
    """Returns whether this attempt has written a checkpoint, or has come further than every one before it."""
    has_checkpoint = trial.latest_checkpoint_id not in ("", allocation.checkpoint_id)
    return has_checkpoint or furthest_batches(trial, allocation) > trial.furthest_batches


def furthest_batches(trial: Trial, allocation: Allocation) -> int:
    """Returns the furthest batch of all ended attempts, this one included."""
    reported_batches = (report.batches_completed or 0 for report in allocation.exits)
    return max(trial.furthest_batches, trial.batches_completed, *reported_batches)


def excluded_by(allocation: Allocation) -> dict[str, str]:
    """Returns the agents of this attempt on which its trial must not start again, with the reason."""
    return {
        report.agent_id: f"log policy {hit.policy!r} matched on rank {hit.rank}: {hit.line}"
        for report in allocation.exits
        for hit in reversed(report.log_hits)
        if hit.action is LogAction.EXCLUDE_NODE
    }


def older_checkpoint(trial: Trial, allocation: Allocation, checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    """Returns the next checkpoint below the one that the allocation started from; or the latest one, if that is a
    different one. checkpoints: the trial's."""
    there = {checkpoint.id: checkpoint for checkpoint in checkpoints if checkpoint.state is CheckpointState.COMPLETED}
    started = there.pop(allocation.checkpoint_id, None)
    latest = there.get(trial.latest_checkpoint_id)
    if latest is not None or started is None:
        return latest
    below = [checkpoint for checkpoint in there.values() if age_of(checkpoint) < age_of(started)]
    return max(below, key=age_of, default=None)


def _why_hopeless(trial: Trial, allocation: Allocation, failure: ExitReport, older: Checkpoint | None) -> str:
    """Returns why a retry is hopeless; empty where another attempt may succeed."""
    if failure.kind in _FINAL:
        with_choice, instead = describe_final(trial, failure)
        return f"{_FINAL[failure.kind]}{with_choice} would come again{instead}"
    if failure.kind is ExitKind.CHECKPOINT_CORRUPT and older is None:
        return "the trial has no older checkpoint"
    if _is_repetition(trial.last_failure, failure):
        batches = failure.batches_completed
        return f"it is the same failure {f'at batch {batches}' if batches else 'before the first reported batch'} twice"
    hits = [hit for report in allocation.exits for hit in report.log_hits if hit.action is LogAction.CANCEL_RETRIES]
    if hits:
        return f"log policy {hits[0].policy!r} matched on rank {hits[0].rank}: {hits[0].line}"
    return ""


def _is_repetition(last: ExitReport | None, failure: ExitReport) -> bool:
    """Returns whether the failure repeats the last one. Only failures of the code itself have a signature; the number
    of batches is not always known."""
    if last is None or not failure.signature or failure.batches_completed is None:
        return False
    return (last.signature, last.batches_completed) == (failure.signature, failure.batches_completed)


def describe(report: ExitReport) -> str:
    """Returns a line such as "rank 1 on agent a2: RuntimeError: boom"."""
    where = f"agent {report.agent_id}" if report.rank is None else f"rank {report.rank} on agent {report.agent_id}"
    what = report.message or _describe_status(report)
    return f"{where}: {what}"


def _describe_status(report: ExitReport) -> str:
    if report.signal is not None:
        return f"ended by signal {report.signal}"
    if report.exit_code is not None:
        return f"exit code {report.exit_code}"
    return str(report.kind).replace("_", " ").lower()


def _after_stop(allocation: Allocation, trial: Trial) -> RetryDecision:
    """Decides after a stop. Preempted work is requeued and has used up nothing, even if the grace was too short for its
    checkpoint; killed work has ended. An operator of a machine may stop a runner too: then a member reports a
    preemption that the scheduler did not order."""
    counts = trial.restarts, trial.infrastructure_failures, trial.failures_in_a_row
    kinds = {report.kind for report in allocation.exits}
    if allocation.stop_kind is ExitKind.PREEMPTED or ExitKind.PREEMPTED in kinds:
        return RetryDecision(None, allocation.stop_reason or "preempted", *counts)
    return RetryDecision(Outcome.CANCELED, allocation.stop_reason or "killed", *counts)


def _is_late_checkpoint(allocation: Allocation, failure: ExitReport) -> bool:
    """Returns whether the allocation was preempted, did not finish within the grace, and was killed by its agent."""
    return allocation.stop_kind is ExitKind.PREEMPTED and failure.kind is ExitKind.RUNNER_LOST


def _after_failure(failure: ExitReport, trial: Trial, terms: RetryTerms) -> RetryDecision:
    older, rules = terms.older, terms.rules
    restarts, setbacks, row = trial.restarts, trial.infrastructure_failures, trial.failures_in_a_row
    if failure.kind is ExitKind.CHECKPOINT_CORRUPT and older is not None:
        reason = f"{describe(failure)}; it goes on from checkpoint {older.id} after batch {older.batches_completed}"
        return RetryDecision(None, reason, restarts, setbacks, row, failure=failure, checkpoint=older)
    if failure.kind is ExitKind.NO_GATEWAY and not terms.had_gateway:
        return RetryDecision(None, describe(failure), restarts, setbacks, row, GATEWAY_PAUSE_SECONDS)
    row += 1
    if failure.kind in INFRASTRUCTURE:
        return _after_setback(failure, trial, row, rules, terms.now)
    if restarts >= terms.max_restarts:
        reason = describe(failure) + _used_up(terms.max_restarts)
        return RetryDecision(Outcome.FAILED, reason, restarts, 0, row, failure=failure)
    return RetryDecision(None, describe(failure), restarts + 1, 0, row, rules.backoff(row), failure)


def _after_setback(failure: ExitReport, trial: Trial, row: int, rules: Rules, now: float) -> RetryDecision:
    restarts, setbacks = trial.restarts, trial.infrastructure_failures + 1
    hours = (now - (trial.failing_since_at or now)) / 3600
    if setbacks >= LEAST_ATTEMPTS and hours * 3600 >= rules.give_up_seconds:
        row_text = f"{setbacks} attempts in a row failed within {hours:.1f} h for reasons outside of the trial"
        reason = f"{row_text} (give_up_hours: {rules.give_up_seconds / 3600:g}); last, {describe(failure)}"
        return RetryDecision(Outcome.FAILED, reason, restarts, setbacks, row, failure=failure)
    return RetryDecision(None, describe(failure), restarts, setbacks, row, rules.backoff(row), failure)


def _used_up(max_restarts: int) -> str:
    if max_restarts <= 1:
        return "; its only restart is used up" if max_restarts else ""
    return f"; all {max_restarts} restarts are used up"
