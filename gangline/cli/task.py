"""`gangline task ...`: what runs and what waits, each waiting trial with its reason."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gangline.cli.shared import Json, connect, new_group, show_table
from gangline.cli.text import format_age

if TYPE_CHECKING:
    from gangline.client import Task

app = new_group("See what runs and what waits.")


@app.command("list")
@app.command("ls", hidden=True)
def list_tasks(is_json: Json = False) -> None:
    """List trials that hold slots or wait for them."""
    with connect() as client:
        tasks = client.list_tasks()
    now = time.time()
    rows = [
        (t.trial.id, t.experiment_name, t.trial.state, _slots(t), format_age(_since(t), now), _where(t)) for t in tasks
    ]
    headings = ("TRIAL", "EXPERIMENT", "STATE", "SLOTS", "SINCE", "WHERE OR WHY NOT")
    show_table(tasks, is_json, headings, rows, "nothing runs and nothing waits")


def _slots(task: Task) -> int:
    if task.allocation is not None:
        return task.allocation.num_slots
    return task.request.slots if task.request is not None else 0


def _since(task: Task) -> float:
    if task.allocation is not None:
        return task.allocation.created_at
    return task.request.submitted_at if task.request is not None else task.trial.created_at


def _where(task: Task) -> str:
    if task.allocation is not None:
        return ", ".join(f"{member.agent_id} ({len(member.slot_ids)})" for member in task.allocation.members)
    return task.reason.message if task.reason is not None else "no scheduler leads, so nobody can say why"
