"""PURE: text about running and waiting trials: a row for each, and the full explanation of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gangline.cli.output.table_layout import Column
from gangline.cli.output.text import count, format_age, format_until
from gangline.domain.experiment import Experiment
from gangline.domain.explanation import Blocker, Explanation, TaskExplanation, place_of
from gangline.domain.id import describe_allocations
from gangline.domain.state import ReasonCode, State
from gangline.domain.task import Task

COLUMNS = (
    Column("PLACE", 5),
    Column("TRIAL"),
    Column("EXPERIMENT", 7, least=10),
    Column("POOL", 3, least=7),
    Column("PRIORITY", 2),
    Column("SLOTS", 4),
    Column("STATE", 9, is_state=True),
    Column("SUBMITTED", 1),
    Column("STARTS", 6),
    Column("WHERE OR WHY NOT", 8, least=16),
)
_MOST_TASKS = 20
_ON_CALL = "on call: it has passed others, and checkpoints and stops once that starts one that comes before it"


def in_queue_order(tasks: Iterable[Task]) -> list[Task]:
    """Sorts pool by pool: running tasks in the order of their start, then waiting ones by their place, then paused
    ones."""
    return sorted(tasks, key=lambda task: (task.pool, task.allocation is None, task.trial.state is State.PAUSED))


def job_row(task: Task, now: float) -> tuple[object, ...]:
    return (
        task.queue_place or "-",
        task.trial.id,
        task.experiment_name,
        task.pool,
        "-" if task.priority is None else task.priority,
        task.size_text,
        task.trial.state,
        format_age(task.submitted_at, now),
        format_until(task.reason.eta_at, now) if task.reason is not None and task.reason.eta_at is not None else "-",
        _where_or_why(task),
    )


def explanation_lines(explanation: Explanation, now: float, tell_instant: Callable[[float], str]) -> list[str]:
    """Returns the lines of an explanation. tell_instant: returns Unix seconds as a clock time."""
    experiment, reason = explanation.experiment, explanation.reason
    lines = [f"experiment {experiment.id} {experiment.name}: {experiment.outcome or experiment.state}"]
    task_reason_codes = {
        explained.task.reason.code for explained in explanation.tasks if explained.task.reason is not None
    }
    if experiment.state is State.PAUSED and reason is not None:
        lines = [f"{lines[0]}, {experiment.reason or reason.message}", f"  goes on if: {reason.would_start_if}"]
    elif reason is not None and reason.code not in task_reason_codes:
        lines += [f"  {reason.code}: {reason.message}", f"  goes on if: {reason.would_start_if}"]
    elif reason is None and experiment.reason:
        lines.append(f"  reason: {experiment.reason}")
    for explained in explanation.tasks[:_MOST_TASKS]:
        lines += _task_lines(explained, experiment, now, tell_instant)
    left = len(explanation.tasks) - _MOST_TASKS
    return [*lines, f"and {left} more trials; gangline job list shows them"] if left > 0 else lines


def _task_lines(
    explained: TaskExplanation, experiment: Experiment, now: float, tell_instant: Callable[[float], str]
) -> list[str]:
    """Returns the lines of one trial, without reasons that the experiment's lines name already."""
    task, trial = explained.task, explained.task.trial
    if task.allocation is not None:
        lines = [f"trial {trial.id}: {task.allocation.state} on {place_of(task.allocation)}, {_terms(task)}"]
        lines += [f"  {_ON_CALL}"] if task.allocation.is_on_call else []
        shrunk = task.shrunk_reason
        if shrunk is not None:
            lines += [f"  {shrunk.code}: {shrunk.message}", f"  grows if: {shrunk.would_start_if}"]
            lines += [f"  not before: {tell_instant(task.allocation.grow_at)}"] if task.allocation.grow_at > now else []
        return lines
    if task.request is None:
        is_named = not trial.reason or trial.reason in experiment.reason
        return [f"trial {trial.id}: {trial.outcome or trial.state}" + ("" if is_named else f", {trial.reason}")]
    place = f"place {task.queue_place} of the queue, " if task.queue_place else ""
    lines = [f"trial {trial.id}: {trial.state}, {place}needs {count(task.num_slots, 'slot')}, {_terms(task)}"]
    if task.reason is None and trial.state is State.PAUSED:
        return lines
    if task.reason is None:
        return [*lines, "  either it is about to start, or no scheduler leads and nobody can say why it waits"]
    is_paused = task.reason.code is ReasonCode.PAUSED and experiment.state is State.PAUSED
    lines += [] if is_paused else [f"  {task.reason.code}: {task.reason.message}"]
    lines += [f"  blocked by {_blocker_name(blocker)}{blocker.text}" for blocker in explained.blockers]
    if is_paused:
        return lines
    if task.reason.would_start_if:
        lines.append(f"  starts if: {task.reason.would_start_if}")
    at = task.reason.eta_at
    when = "nobody can tell when" if at is None else f"{tell_instant(at)} ({format_until(at, now)})"
    return [*lines, f"  starts: {when}"]


def _blocker_name(blocker: Blocker) -> str:
    """Returns the id of an agent. The text of a trial names it already; an allocation that is gone is named here."""
    if blocker.kind in ("allocation", "trial"):
        return ""
    name = describe_allocations([blocker.id]) if blocker.id.count(".") > 1 and blocker.kind == "gone" else blocker.id
    return f"{name}: "


def _terms(task: Task) -> str:
    priority = "the pool's default priority" if task.priority is None else f"priority {task.priority}"
    return f"pool {task.pool!r}, {priority}"


def _where_or_why(task: Task) -> str:
    if task.allocation is not None:
        return ", ".join(f"{member.agent_id} ({len(member.slot_ids)})" for member in task.allocation.members)
    if task.reason is None:
        return "about to start, or no scheduler leads" if task.trial.state is State.QUEUED else "-"
    return str(task.reason.code)
