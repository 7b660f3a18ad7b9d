"""`gangline task ...`: running and waiting trials, each waiting one with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.cli.output.table_layout import Column
from gangline.cli.output.text import format_age
from gangline.cli.shared import add_list, new_group

if TYPE_CHECKING:
    from gangline.client import Task

app = new_group("See what runs and what waits.")

_COLUMNS = (
    Column("TRIAL"),
    Column("EXPERIMENT", 6, least=10),
    Column("STATE", 9, is_state=True),
    Column("SLOTS", 4),
    Column("SINCE", 3),
    Column("WHERE OR WHY NOT", 8, least=16),
)


def _row(task: Task, now: float) -> tuple[object, ...]:
    return (
        task.trial.id,
        task.experiment_name,
        task.trial.state,
        task.size_text,
        format_age(_since(task), now),
        _where(task),
    )


add_list(
    app,
    "List trials that hold slots or wait for them.",
    lambda client: client.list_tasks(),
    _COLUMNS,
    _row,
    empty="nothing runs and nothing waits",
)


def _since(task: Task) -> float:
    if task.allocation is not None:
        return task.allocation.created_at
    return task.submitted_at


def _where(task: Task) -> str:
    if task.allocation is not None:
        return ", ".join(f"{member.agent_id} ({len(member.slot_ids)})" for member in task.allocation.members)
    return task.reason.message if task.reason is not None else "no scheduler leads, so nobody can say why"
